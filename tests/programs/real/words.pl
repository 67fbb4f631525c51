#!/usr/bin/perl
# Builds, sorts and rewrites a large hash of words; the output depends on the number of rounds alone.
use strict;
use warnings;

my $rounds = shift // 24;
my $state = 12345;

sub next_number {
    my ($limit) = @_;
    $state = ($state * 1103515245 + 12345) % 2147483648;
    return int($state / 65536) % $limit;
}

my %count;
my @letters = ('a' .. 'z');
for my $round (1 .. $rounds) {
    for (1 .. 1500) {
        my $word = join '', map { $letters[next_number(26)] } 1 .. 2 + next_number(4);
        $count{$word}++;
        (my $turned = reverse $word) =~ s/([aeiou])/<$1>/g;
        $count{$turned} += length $turned;
    }
    my $sum = 0;
    my $place = 0;
    for my $word (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count) {
        $sum = ($sum * 31 + $count{$word} + length $word) % 1000000007;
        last if ++$place >= 5000;
    }
    print "round $round: ", scalar(keys %count), " words, $sum\n";
    if ($round % 7 == 0) {
        delete $count{$_} for grep { /^[a-f]/ } sort keys %count;
    }
}
print "done\n";

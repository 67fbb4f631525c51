# Perl: children by open, wait statuses, a pipe in both directions.
exec perl -e '
use IPC::Open2; $| = 1;
my $pid = open2(my $out, my $in, "while read x; do echo \$((x * 2)); done");
for my $n (1 .. 40) {
    print $in "$n\n"; my $twice = <$out>; chomp $twice; print "$n $twice\n";
    my $child = fork; if (!$child) { select undef, undef, undef, 0.02; exit $n }
    waitpid $child, 0; die if $? != $n << 8;
    select undef, undef, undef, 0.03;
}
close $in; waitpid $pid, 0; print "ok\n";'

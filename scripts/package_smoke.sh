#!/bin/sh
# A program is checkpointed, killed and brought back by the `ckpt` of the path. Run by package.sh inside a fresh system, with
# the installed package; by checks.sh with what clang has built.
set -eu
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
# perl-base is in every Debian. It counts to a sum, a line each step, and ends when it is told to by the file `end`.
cat >count.pl <<'P'
$| = 1;
my $sum = 0;
for my $i (1 .. 1000000000) {
  $sum += $i;
  if ($i % 100000 == 0) {
    print "$i $sum\n";
    if (-e "end") { print $sum == $i * ($i + 1) / 2 ? "right\n" : "wrong\n"; exit 0; }
    select(undef, undef, undef, 0.01);
  }
}
P
: >out
ckpt run --dir images -- perl count.pl >out 2>err &
pid=$!
lines() { wc -l <"$1"; }
until [ "$(lines out)" -ge 3 ]; do kill -0 "$pid" || { cat out err >&2; exit 1; }; done
ckpt now "$pid"
kill -9 "$pid"
wait "$pid" || true
at=$(lines out)
ckpt verify images
: >end
ckpt-restart images
tail -n 1 out | grep -qx right || { cat out err >&2; echo "the restarted program did not end with the right sum" >&2; exit 1; }
echo "glibc $(ldd --version | sed -n '1s/.* //p'): killed after $at lines, brought back, right"

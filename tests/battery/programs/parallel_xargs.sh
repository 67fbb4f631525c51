# xargs with several processes, whose lines go through a pipe.
seq 1 90 | xargs -P 3 -n 1 sh -c 'sleep 0.06; echo "$0"' | sort -n | sum
echo ok

# Background jobs, traps, a here document, a subshell and a process substitution.
count=0
trap 'count=$((count + 1))' USR1
sleep 1000 &
sleeper=$!
while read -r line; do
    kill -USR1 $$
    (exit $((line % 5)))
    echo "$line $? $(echo "$line" | sed s/1/one/)"
    kill -0 $sleeper || exit 1
    sleep 0.05
done < <(seq 1 40)
kill $sleeper
wait $sleeper
echo "$? $count $(cat <<END
ok
END
)"
echo ok

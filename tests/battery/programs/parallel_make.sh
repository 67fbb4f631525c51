# make -j with a token pipe.
{
    echo "all: $(seq -s " " -f t%g 1 70)"
    for i in $(seq 1 70); do printf 't%d:\n\t@sleep 0.1; echo %d > $@\n' "$i" "$i"; done
} > Makefile
make -j3 && cat t? t?? | sum
echo ok

# make -j with a token pipe. A file is there when it is whole: make would take one that is half written at the kill for made.
{
    echo "all: $(seq -s " " -f t%g 1 70)"
    for i in $(seq 1 70); do printf 't%d:\n\t@sleep 0.1; echo %d > $@.new; mv $@.new $@\n' "$i" "$i"; done
} > Makefile
make -j3 && cat t? t?? | sum
echo ok

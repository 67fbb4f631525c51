// A program of Go that does at once what programs of Go do: garbage, sockets, timers, signals,
// children, pipes. What it prints depends on its argument alone. With a second one it ends when there is a
// file of that name.
package main

import (
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc64"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

func must(err error) {
	if err != nil {
		fmt.Println("FAILED:", err)
		os.Exit(1)
	}
}

func main() {
	rounds, _ := strconv.Atoi(os.Args[1])
	var wg sync.WaitGroup
	results := make([]string, 6)
	do := func(i int, f func() string) { wg.Add(1); go func() { defer wg.Done(); results[i] = f() }() }
	// garbage, maps
	do(0, func() string {
		h := sum()
		m := map[int][]byte{}
		for i := 0; i < rounds*200; i++ {
			b := make([]byte, 4096+i%65536)
			binary.LittleEndian.PutUint64(b, uint64(i))
			m[i%300] = b
			if i%50 == 0 {
				h.Write(m[(i*7)%300%len(m)])
			}
			if i%4000 == 0 {
				runtime.GC()
			}
		}
		return fmt.Sprintf("%x", h.Sum(nil))
	})
	// TCP over loopback, a connection each
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	go func() {
		for {
			c, err := l.Accept()
			must(err)
			go func() {
				h := sum()
				_, err := io.Copy(h, c)
				must(err)
				_, err = c.Write(h.Sum(nil))
				must(err)
				c.Close()
			}()
		}
	}()
	do(1, func() string {
		h := sum()
		for i := 0; i < rounds*10; i++ {
			c, err := net.Dial("tcp", l.Addr().String())
			must(err)
			_, err = io.Copy(c, io.LimitReader(&gen{byte(i)}, int64(1000+i*37%200000)))
			must(err)
			must(c.(*net.TCPConn).CloseWrite())
			b, err := io.ReadAll(c)
			must(err)
			c.Close()
			h.Write(b)
		}
		return fmt.Sprintf("%x", h.Sum(nil))
	})
	// timers
	do(2, func() string {
		t := time.NewTicker(3 * time.Millisecond)
		n := 0
		for i := 0; i < rounds*3; i++ {
			<-t.C
			n++
			t0 := time.Now()
			time.Sleep(time.Millisecond)
			if time.Since(t0) < time.Millisecond {
				must(fmt.Errorf("short sleep"))
			}
		}
		return strconv.Itoa(n)
	})
	// signals
	c := make(chan os.Signal, 100000)
	signal.Notify(c, syscall.SIGUSR1)
	do(3, func() string {
		n := 0
		for i := 0; i < rounds*5; i++ {
			syscall.Kill(os.Getpid(), syscall.SIGUSR1)
			<-c
			n++
		}
		return strconv.Itoa(n)
	})
	// children
	do(4, func() string {
		h := sum()
		for i := 0; i < rounds/10; i++ {
			out, err := exec.Command("/bin/echo", strconv.Itoa(i)).Output()
			must(err)
			h.Write(out)
		}
		return fmt.Sprintf("%x", h.Sum(nil))
	})
	// pipes
	r, w, err := os.Pipe()
	must(err)
	go func() {
		for i := 0; i < rounds*100; i++ {
			b := make([]byte, 8+i%3000)
			binary.LittleEndian.PutUint64(b, uint64(i))
			_, err := w.Write(b)
			must(err)
		}
		w.Close()
	}()
	do(5, func() string {
		h := sum()
		n, err := io.Copy(h, r)
		must(err)
		return fmt.Sprintf("%d %x", n, h.Sum(nil))
	})
	wg.Wait()
	for len(os.Args) > 2 {
		if _, err := os.Stat(os.Args[2]); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, s := range results {
		fmt.Println(s)
	}
	fmt.Println("done")
}

func sum() hash.Hash { return crc64.New(crc64.MakeTable(crc64.ECMA)) }

type gen struct{ b byte }

func (g *gen) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = g.b
		g.b++
	}
	return len(p), nil
}

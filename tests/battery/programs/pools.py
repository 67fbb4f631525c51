"""multiprocessing: a pool, a queue, a lock, an array, a manager."""
import multiprocessing
import sys
import time


def square(x):
    time.sleep(0.02)
    return x * x


def counts(lock, numbers, queue):
    for _ in range(50):
        with lock:
            numbers[0] += 1
        queue.put(numbers[0] > 0)
        time.sleep(0.02)


if __name__ == "__main__":
    lock, numbers, queue = multiprocessing.Lock(), multiprocessing.Array("i", 4), multiprocessing.Queue()
    others = [multiprocessing.Process(target=counts, args=(lock, numbers, queue)) for _ in range(2)]
    for process in others:
        process.start()
    with multiprocessing.Pool(2) as pool:
        for n in range(40):
            print(n, pool.map(square, range(n, n + 4)), flush=True)
            assert queue.get() and queue.get()
    for process in others:
        process.join()
    assert numbers[0] == 100
    print("ok")
    sys.exit(0)

"""asyncio: timers, a server and its client, a child that answers, threads behind an executor."""
import asyncio
import time


async def serve(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    child = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    loop = asyncio.get_running_loop()
    for n in range(60):
        print(n, flush=True)
        writer.write(f"line {n}\n".encode())
        child.stdin.write(f"to cat {n}\n".encode())
        began = loop.time()
        answers = await asyncio.gather(reader.readline(), child.stdout.readline(), loop.run_in_executor(None, time.sleep, 0.02),
                                       asyncio.sleep(0.03))
        assert answers[:2] == [f"LINE {n}\n".encode(), f"to cat {n}\n".encode()] and loop.time() - began < 20
    child.stdin.close()
    assert await child.wait() == 0
    writer.close()
    server.close()
    print("ok")

asyncio.run(main())

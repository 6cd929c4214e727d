"""Run jobs in several worker processes. Each takes many jobs, so imports happen once per worker.

A worker that dies only loses its current job. Ctrl-C reaches only the parent process, which then
stops the workers by SIGTERM, so a training run saves its last finished step. If the parent is
killed, the workers stop as well.
"""
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.connection import wait


def follow(parent):
    """End this process when its parent has died: it then gets another one."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def work(pipe, parent, number, job, mistake):
    """A worker: takes cells and sends lines until the pipe is closed. WORKER tells the job its
    number."""
    os.environ["WORKER"] = str(number)
    os.setsid()  # Ctrl-C in the terminal does not reach it
    threading.Thread(target=follow, args=(parent,), daemon=True).start()
    while True:
        try:
            cell = pipe.recv()
            try:
                pipe.send({"line": job(cell)})
            except mistake as error:
                pipe.send({"mistake": str(error)})
        except (EOFError, ConnectionError):
            return


def run_all(cells, job, jobs, done, mistake):
    """Run job(cell) for every cell (a dict) in `jobs` processes, and done(cell, line) in this one.
    Returns the cells that were lost.

    mistake: an exception class that ends everything and is raised again here. Any other exception
    ends only its worker. `mistake` is also raised if the first three cells are all lost.
    """
    context = multiprocessing.get_context("spawn")  # CUDA cannot be forked
    queue, idle, busy, lost, finished, started = list(cells), [], {}, [], 0, 0
    try:
        while queue or busy:
            while queue and len(busy) < jobs:
                if not idle:
                    here, there = context.Pipe()
                    process = context.Process(
                        target=work, args=(there, os.getpid(), started, job, mistake))
                    process.start()
                    started += 1
                    there.close()  # else we would not notice that the worker died
                    idle.append((here, process))
                pipe, process = idle.pop()
                busy[pipe] = process, queue.pop(0)
                with suppress(ConnectionError):  # it died while idle: `recv` below will say so
                    pipe.send(busy[pipe][1])
            for pipe in wait(list(busy)):
                process, cell = busy[pipe]
                try:
                    reply = pipe.recv()
                except (EOFError, ConnectionError):
                    del busy[pipe]
                    process.join()
                    lost.append(cell)
                    if not finished and len(lost) == 3:
                        raise mistake(f"three workers died without a result; the last had {cell}; "
                                      "what it said is above, or in its log.") from None
                    continue
                del busy[pipe]
                idle.append((pipe, process))
                if "mistake" in reply:
                    said = f"{' '.join(map(str, cell.values()))}: {reply['mistake']}"
                    if busy:  # a step can take minutes, so do not wait in silence
                        print(f"{said} Cells that still end their step: {len(busy)}.", flush=True)
                    raise mistake(said)
                finished += 1
                done(cell, reply["line"])
    finally:
        for pipe, _ in idle:
            pipe.close()  # tells the worker to end
        for process, _ in busy.values():
            process.terminate()
        for process in [process for _, process in idle] + [process for process, _ in busy.values()]:
            process.join()
    return lost

"""Kinds of faults: each is given the drivers, does its harm once, and says whether it could."""

import shutil
import signal
import time

from headwise.spec import SpecError
from headwise.store.store import Store
from soak.processes import send

STOPPED_SECONDS = 1.0
FILE_BYTES = 40_000  # less than a store needs


def kill(kind):
    def one(drivers, chance):
        victims = drivers.marked()[kind]
        return bool(victims) and send(chance.choice(victims), signal.SIGKILL)

    return one


def stop_and_go_on(kind):
    def one(drivers, chance):
        victims = drivers.marked()[kind]
        if not victims:
            return False
        victim = chance.choice(victims)
        stopped = send(victim, signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        send(victim, signal.SIGCONT)
        return stopped

    return one


def interrupt(number):
    def one(drivers, chance):
        victims = drivers.marked()["driver"]
        return bool(victims) and send(chance.choice(victims), number)

    return one


def jump_clock(drivers, chance):
    victims = drivers.marked()["driver"]
    return bool(victims) and send(chance.choice(victims), signal.SIGUSR1)


def full_disk(drivers, chance):
    """One more driver, whose files may not grow: it must end with a sentence, and spoil nothing."""
    drivers.limited.append(drivers.start(SOAK_FILE_BYTES=str(FILE_BYTES)))
    return True


def copy_live(drivers, chance):
    """The store's files as they are at this moment; and its rows, as merging reads them."""
    store, folder = drivers.folder / "runs.db", drivers.folder / "copies"
    folder.mkdir(exist_ok=True)
    if not store.exists():
        return False
    for file in drivers.folder.glob("runs.db*"):
        shutil.copyfile(file, folder / file.name)
    try:
        with Store(folder / "runs.db") as copy:
            list(copy.runs())
    except SpecError:  # a copy of a file that changes may be refused, in a sentence
        pass
    with Store(folder / "merged.db") as merged:
        merged.merge([store])
    shutil.rmtree(folder)
    return True


FAULTS = {
    "SIGKILL to a driver": kill("driver"),
    "SIGKILL to a worker": kill("worker"),
    "SIGKILL to the workers' server": kill("server"),
    "SIGSTOP, SIGCONT to a driver": stop_and_go_on("driver"),
    "SIGSTOP, SIGCONT to a worker": stop_and_go_on("worker"),
    "SIGTERM to a driver": interrupt(signal.SIGTERM),
    "SIGINT to a driver": interrupt(signal.SIGINT),
    "clock jump (injected)": jump_clock,
    "full disk (limit on file size)": full_disk,
    "store copied while live": copy_live,
}
WEIGHTS = [6, 8, 3, 2, 2, 2, 1, 3, 1, 2]

"""Kinds of faults: each is given a round's drivers, does its harm once, and says whether it could."""

import shutil
import signal
import time

from headwise.spec import SpecError
from headwise.store.store import Store
from soak import disks
from soak.processes import send

STOPPED_SECONDS = 0.1, 6.0  # a driver is taken for lost after 4
FILE_BYTES = 40_000  # less than a store needs


def kill(kind):
    def one(drivers, chance):
        victims = drivers.marked()[kind]
        return bool(victims) and send(chance.choice(victims), signal.SIGKILL)

    return one


def kill_everything(drivers, chance):
    """As where the machine loses power, but for what was written."""
    return bool([send(pid, signal.SIGKILL) for pid in drivers.everything()])


def stop_and_go_on(kind):
    def one(drivers, chance):
        victims = drivers.marked()[kind]
        if not victims:
            return False
        victim = chance.choice(victims)
        stopped = send(victim, signal.SIGSTOP)
        time.sleep(chance.uniform(*STOPPED_SECONDS))
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


TO_DRIVER = "SIGKILL to a driver"
FAULTS = {  # and how often one is made, of a thousand: a worker is there again in tenths of a second, a driver is not
    TO_DRIVER: (kill("driver"), 12),
    "SIGKILL to a worker": (kill("worker"), 880),
    "SIGKILL to the workers' server": (kill("server"), 25),
    "SIGKILL to multiprocessing's tracker": (kill("tracker"), 15),
    "SIGKILL to all processes at once": (kill_everything, 6),
    "SIGSTOP, SIGCONT to a driver": (stop_and_go_on("driver"), 8),
    "SIGSTOP, SIGCONT to a worker": (stop_and_go_on("worker"), 8),
    "SIGSTOP, SIGCONT to the workers' server": (stop_and_go_on("server"), 8),
    "SIGTERM to a driver": (interrupt(signal.SIGTERM), 6),
    "SIGINT to a driver": (interrupt(signal.SIGINT), 6),
    "clock jump (injected)": (jump_clock, 8),
    disks.NAME: (disks.fill, 6),
    "full disk (limit on file size)": (full_disk, 4),
    "store copied while live": (copy_live, 8),
}

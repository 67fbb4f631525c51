"""A device file of an InfiniBand adapter, in the mount namespace of whoever runs these lines of a shell: the number of another
device is behind it, which can be opened and does nothing."""
import os

BEHIND = [name for name in ("fuse", "loop-control", "cpu_dma_latency") if os.path.exists("/dev/" + name)]
PATH = "/dev/infiniband/uverbs0"


def missing():
    if os.geteuid() != 0 or not BEHIND:
        return "only root has device files of his own, and a device to put behind one"
    return None


def lines(directory):
    """directory: for the /dev of before."""
    return (f"mkdir -p {directory}; mount --make-rprivate /; mount --rbind /dev {directory}; mount -t tmpfs none /dev; cd {directory}; "
            f"cp -a null zero full random urandom tty /dev/; cd - > /dev/null; mkdir /dev/shm /dev/pts /dev/infiniband; mount --rbind {directory}/shm /dev/shm; "
            f"mount --rbind {directory}/pts /dev/pts; ln -s pts/ptmx /dev/ptmx; ln -s /proc/self/fd /dev/fd; cp -a {directory}/{BEHIND[0]} {PATH}; ")

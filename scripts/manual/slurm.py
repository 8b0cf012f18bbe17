#!/usr/bin/python3
"""Stands in for Slurm and Open MPI in scripts/manual.sh: starts commands on nodes, and ends them.

  slurm.py node DIR NAME   a node's daemon, which answers at the socket DIR/NAME
  srun, mpirun             starts a command once on each node, and ends with the worst status
  sbatch --wait FILE       runs a job's script on the first node, its output in slurm-1.out

The last three are links to this file. $SAKER_NODES is DIR. Options that it does not know are errors:
a manual that uses others needs a test that knows them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

NODES = [f"node{n:02}" for n in range(1, 5)]
LIST = "node[01-04]"


def serve(directory, name):
    """Starts what clients ask for, in their working directory and with their descriptors."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{directory}/{name}")
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            step(client)
            os._exit(0)
        client.close()


def step(client):
    """One command: it ends when its client hangs up, and what it leaves behind ends with it."""
    data, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 3)
    asked = json.loads(data)
    child = subprocess.Popen(
        asked["command"],
        cwd=asked["cwd"],
        env=asked["env"],
        stdin=subprocess.DEVNULL,
        stdout=descriptors[1],
        stderr=descriptors[2],
        start_new_session=True,
    )

    def end_with_client():
        client.recv(1)
        end(child.pid)

    threading.Thread(target=end_with_client, daemon=True).start()
    result = child.wait() & 0xFF
    while end(child.pid):
        time.sleep(0.05)
    client.sendall(bytes([result]))


def end(group):
    """Tells a group of processes to end. False if there is none."""
    try:
        os.killpg(group, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True


def start(node, command, env):
    """Starts a command on a node. Its status comes from the socket."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"{os.environ['SAKER_NODES']}/{node}")
    asked = {"command": command, "cwd": os.getcwd(), "env": {**os.environ, **env}}
    socket.send_fds(client, [json.dumps(asked).encode()], [0, 1, 2])
    return client


def status(client):
    """The status of a command that was started; 1 if its node's daemon died."""
    return (client.recv(1) or b"\1")[0]


def everywhere(command, env_of):
    """Runs a command once on each node; the worst of their statuses."""
    clients = [start(node, command, env_of(n, node)) for n, node in enumerate(NODES)]

    def hang_up(_signal, _frame):
        for client in clients:
            client.shutdown(socket.SHUT_WR)

    signal.signal(signal.SIGTERM, hang_up)
    return max(status(client) for client in clients)


def refuse(what):
    sys.exit(f"{sys.argv[0]}: the stand-in of scripts/manual.sh does not know {what}")


def srun(args):
    while args and args[0].startswith("-"):
        if args[0] not in ("--ntasks-per-node=1", "--overlap"):
            refuse(args[0])
        args = args[1:]
    return everywhere(
        args,
        lambda n, node: {
            "SLURM_PROCID": str(n),
            "SLURM_NTASKS": str(len(NODES)),
            "SLURM_JOB_NODELIST": LIST,
            "SLURMD_NODENAME": node,
        },
    )


def mpirun(args):
    if args[:4] != ["--host", ",".join(NODES), "-N", "1"]:
        refuse(" ".join(args[:4]))
    return everywhere(
        args[4:],
        lambda n, node: {
            "OMPI_COMM_WORLD_RANK": str(n),
            "OMPI_COMM_WORLD_SIZE": str(len(NODES)),
        },
    )


def sbatch(args):
    if len(args) != 2 or args[0] != "--wait":
        refuse(" ".join(args))
    with open(args[1], encoding="utf-8") as script:
        options = [line for line in script if line.startswith("#SBATCH")]
    if options != ["#SBATCH --nodes=4 --ntasks-per-node=1\n"]:
        refuse("".join(options))
    output = os.open("slurm-1.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    return status(start(NODES[0], ["bash", args[1]], {"SLURM_JOB_NODELIST": LIST}))


def main():
    name, args = os.path.basename(sys.argv[0]), sys.argv[1:]
    if args[:1] == ["node"]:
        serve(args[1], args[2])
    commands = {"srun": srun, "mpirun": mpirun, "sbatch": sbatch}
    sys.exit(commands[name](args))


if __name__ == "__main__":
    main()

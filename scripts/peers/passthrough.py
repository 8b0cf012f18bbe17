"""libfuse's example passthrough over the local disk: the bound of every FUSE file system."""

import gzip
from pathlib import Path

import host
from host import Failed
from system import System

EXAMPLES = Path("/usr/share/doc/libfuse3-dev/examples")


class Passthrough(System):
    name = "passthrough"
    about = "libfuse's example passthrough (high-level), as it is: nothing cached; not flushed"
    packages = ("libfuse3-dev", "gcc", "libc6-dev", "pkg-config", "fuse3")
    own_network = False
    cached = False

    def start(self) -> None:
        """Builds it."""
        (self.work / "under").mkdir()
        for name in ("passthrough.c", "passthrough_helpers.h"):
            (self.work / name).write_text(self.source(name))
        flags = host.command(["pkg-config", "--cflags", "--libs", "fuse3"]).split()
        source, program = self.work / "passthrough.c", self.work / "passthrough"
        host.command(["gcc", "-O2", source, "-o", program, *flags])

    def source(self, name: str) -> str:
        """One of its files; with libfuse's default caches, without the lines that end them."""
        plain, packed = EXAMPLES / name, EXAMPLES / f"{name}.gz"
        text = (
            plain.read_text() if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
        )
        if self.cached and name == "passthrough.c":
            lines = text.splitlines()
            kept = [line for line in lines if "_timeout = 0" not in line]
            if len(kept) != len(lines) - 3:
                raise Failed("the example passthrough is not the one that is known")
            text = "\n".join(kept) + "\n"
        return text

    def mount(self) -> None:
        program, under = self.work / "passthrough", self.work / "under"
        # libfuse adds the path of the directory: the kernel does not look up its components.
        options = f"modules=subdir,subdir={under},allow_other"
        self.run_client(program, "-o", options, self.point)


class PassthroughCached(Passthrough):
    name = "passthrough-cached"
    about = "the same with libfuse's default caches (names and attributes for 1 s)"
    cached = True

"""JuiceFS: metadata in Redis, data in a local directory. Built from its Go module."""

import json
import os
from pathlib import Path

import host
from host import Failed
from system import System

MODULE = "github.com/juicedata/juicefs@v1.3.1"
# Metadata engines and object stores that are not used here, as its own lite build leaves them out.
TAGS = (
    "nogateway,nowebdav,nocos,nobos,nohdfs,noibmcos,noobs,nooss,noqingstor,noswift,noazure,nogs,"
    "noufile,nob2,nonfs,nodragonfly,nosqlite,nomysql,nopg,notikv,nobadger,noetcd,nocifs"
)
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "saker-peers"


class JuiceFs(System):
    name = "juicefs"
    about = "Redis with an append-only file, flushed every second; data in a directory; no trash"
    packages = ("redis-server", "redis-tools", "fuse3")
    fsync = "everysec"
    mount_options: tuple[str, ...] = ()
    port = 6399

    def install(self) -> None:
        super().install()
        if not self.program.exists():
            self.build()

    @property
    def program(self) -> Path:
        """JUICEFS names one that is there; else it is built once, and kept."""
        return Path(os.environ.get("JUICEFS") or CACHE / "juicefs")

    def build(self) -> None:
        """Inside its downloaded module: other ways may not resolve its dependencies."""
        host.say("building JuiceFS, once: this takes ten minutes")
        CACHE.mkdir(parents=True, exist_ok=True)
        go, env = go_program(), {"GOPATH": str(CACHE / "go"), "GOFLAGS": "-modcacherw"}
        said = host.command([go, "mod", "download", "-json", MODULE], env=env, seconds=600)
        words = [go, "build", "-C", json.loads(said)["Dir"], "-tags", TAGS, "-o", self.program, "."]
        host.command(words, env=env, seconds=3600)

    @property
    def meta(self) -> str:
        """Where its metadata is."""
        return f"redis://{self.address}:{self.port}/1"

    def start(self) -> None:
        redis = self.work / "redis"
        redis.mkdir()
        words = ["redis-server", "--bind", self.address, "--port", str(self.port)]
        words += ["--protected-mode", "no", "--dir", redis, "--save", "", "--appendonly", "yes"]
        self.spawn(*words, "--appendfsync", self.fsync)
        ping = ["redis-cli", "-h", self.address, "-p", str(self.port), "ping"]

        def answers() -> bool:
            return "PONG" in host.command(ping, network=self.network, code=None)

        host.wait_until("Redis", 20, answers)
        words = [self.program, "format", "--storage", "file", "--bucket", f"{self.work}/data/"]
        self.run(*words, "--trash-days", "0", "--no-update", self.meta, "peers", log=True)

    def mount(self) -> None:
        words = [self.program, "mount", "--background", "--no-usage-report"]
        words += ["--log", self.work / "juicefs.log", "--cache-dir", self.work / "cache"]
        self.run_client(*words, *self.mount_options, self.meta, self.point)

    def version(self) -> str:
        redis = host.package_version("redis-server")
        return f"{host.command([self.program, 'version']).split()[2]}, Redis {redis}"


class JuiceFsSync(JuiceFs):
    name = "juicefs-sync"
    about = "the same; Redis flushes before it answers (appendfsync always)"
    fsync = "always"
    only_flushed = True


class JuiceFsUncached(JuiceFs):
    name = "juicefs-uncached"
    about = "as shipped; the mount keeps no names and attributes"
    only_names = True
    mount_options = ("--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0")


def go_program() -> str:
    """Also where Go's own installer puts it."""
    for path in ("/usr/local/go/bin/go",):
        if Path(path).exists():
            return path
    try:
        return host.find_program("go")
    except Failed as why:
        raise Failed("JuiceFS is built with Go 1.23 or newer, and there is none") from why

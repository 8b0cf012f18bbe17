# Saker: what to type. `make run` and `make test` need Debian 12 or newer, root or sudo, and
# rustup's stable toolchain; they install what else is missing.

.PHONY: help run stop install check test test-long bench peers traverse frozen policies untar nodes fmt lint

help:
	@echo "make run        build, start a cluster in .saker, mount it at mnt, try it; leaves it running"
	@echo "make stop       stop it (saker up starts it again; saker down --wipe deletes it)"
	@echo "make install    saker, mount.saker and libsaker_preload.so to PREFIX=/usr/local"
	@echo "make check      before every commit: format, lints, unit tests, 400 seeds of the simulation"
	@echo "make test       everything that CI runs"
	@echo "make test-long  the same with the long forms"
	@echo "make bench      measure this machine: engine, network, cluster, mount"
	@echo "make peers      measure other file systems beside it: PEERS=\"ext4 moosefs\" PEERS_OPTIONS=--quick"
	@echo "make traverse   random traversal with limited memory: PEERS=\"saker-bpf cephfs\""
	@echo "make frozen     frozen datasets beside local disk and mounts: reading and packing"
	@echo "make policies   what policies of directories cost, each mechanism: PEERS_OPTIONS=--quick"
	@echo "make untar      a source tree and a checkpoint under policies, beside ext4 and MooseFS"
	@echo "make nodes      staged datasets on up to 64 nodes of this machine: NODES_OPTIONS=--quick"
	@echo "make fmt lint   format; clippy with all warnings as errors"

run:
	scripts/run.sh

stop:
	scripts/stop.sh

install:
	PREFIX=$(PREFIX) scripts/install.sh

check:
	scripts/test.sh check

test:
	scripts/test.sh

test-long:
	scripts/test.sh long

bench:
	scripts/bench.sh

peers:
	scripts/peers.sh compare $(PEERS) $(PEERS_OPTIONS)

traverse:
	scripts/peers.sh traverse $(PEERS) $(PEERS_OPTIONS)

frozen:
	scripts/peers.sh frozen $(PEERS) $(PEERS_OPTIONS)

policies:
	scripts/peers.sh policies $(PEERS_OPTIONS)

untar:
	scripts/peers.sh untar $(PEERS) $(PEERS_OPTIONS)

nodes:
	scripts/nodes.sh $(NODES_OPTIONS)

fmt:
	cargo fmt --all

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

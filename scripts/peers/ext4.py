"""A directory of the local disk: the bound that no server can beat."""

from system import System


class Ext4(System):
    name = "ext4"
    about = "a directory of the local disk, no server; not flushed"
    own_network = False

    def install(self) -> None:
        """It is there."""

    def mount(self) -> None:
        """It is always there."""

    def version(self) -> str:
        return "of the kernel"

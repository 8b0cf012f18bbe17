//! What is measured: a file system, seen through LibFS or through system calls.

use std::io;

use bytes::Bytes;

/// A directory below the benchmark's own one: names from there down.
pub type DirPath = Vec<String>;

/// Something that operations run on.
pub trait Runner: Clone + Send + 'static {
    /// The same as the `n`-th thread is to use it.
    fn of_thread(&self, _n: usize) -> Self {
        self.clone()
    }

    /// Runs a future on the calling thread.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

/// A file system under test. Every method is one public call, or the smallest pair of calls that
/// leaves nothing open. Implementations block or wait, as they like: each runs under its own
/// [`Runner::block_on`].
pub trait Target: Runner {
    /// A place of an entry, made outside the time that is measured.
    type Place;

    /// Where `name` in `dir` is.
    fn place(&self, dir: &DirPath, name: &str) -> Self::Place;
    /// Makes an empty file, and closes it.
    async fn create(&self, place: &Self::Place) -> io::Result<()>;
    /// stat(2).
    async fn getattr(&self, place: &Self::Place) -> io::Result<()>;
    /// Opens for reading, and closes.
    async fn open(&self, place: &Self::Place) -> io::Result<()>;
    /// unlink(2).
    async fn unlink(&self, place: &Self::Place) -> io::Result<()>;
    /// mkdir(2).
    async fn mkdir(&self, place: &Self::Place) -> io::Result<()>;
    /// rmdir(2).
    async fn rmdir(&self, place: &Self::Place) -> io::Result<()>;
    /// Makes a file with this content, and closes it.
    async fn write(&self, place: &Self::Place, content: &[u8]) -> io::Result<()>;
    /// Replaces the content of a file that is there, and closes it.
    async fn overwrite(&self, place: &Self::Place, content: &[u8]) -> io::Result<()>;
    /// Reads a file of so many bytes from the start to the end; an error if it is shorter.
    async fn read(&self, place: &Self::Place, len: usize) -> io::Result<Bytes>;
    /// Makes the benchmark's own directory.
    fn make_base(&self) -> io::Result<()>;
    /// Removes it with all that is in it.
    fn remove_base(&self) -> io::Result<()>;
}

//! Listening, for servers that are started again where they were killed.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use crate::time::now;

/// A process that was killed listens until the kernel has taken it down, which a busy machine may
/// take this long for.
const TAKEN_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Listens at an address. Waits a moment if somebody still listens there.
///
/// # Errors
/// Of bind(2), with the address: EADDRINUSE if it stays taken.
pub fn listen(addr: SocketAddr) -> io::Result<TcpListener> {
    listen_within(addr, TAKEN_MAX)
}

fn listen_within(addr: SocketAddr, taken_max: Duration) -> io::Result<TcpListener> {
    let start = now();
    loop {
        match TcpListener::bind(addr) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && now().since(start) < taken_max => {
                // Real time: nothing tells when an address is free.
                std::thread::sleep(PAUSE);
            }
            other => {
                let about = |e: io::Error| {
                    io::Error::new(e.kind(), format!("cannot listen at {addr}: {e}"))
                };
                return other.map_err(about);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_address_that_is_given_up_is_waited_for() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap();
        let refused = listen_within(addr, Duration::ZERO).unwrap_err();
        assert!(refused.to_string().contains(&addr.to_string()), "{refused}");
        let waiting = thread::spawn(move || listen(addr));
        // Real time: so that it is found taken at first; without that the test still holds.
        thread::sleep(PAUSE);
        drop(taken);
        assert_eq!(waiting.join().unwrap().unwrap().local_addr().unwrap(), addr);
    }
}

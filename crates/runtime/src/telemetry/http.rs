//! The HTTP side: `/metrics` and `/healthz`, on a thread of its own.

use std::io;
use std::net::{SocketAddr, TcpListener};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

use super::{Counter, Registry};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves `registry` at `/metrics`, and `ok` at `/healthz`, for the rest of the process's life.
/// Returns the address that it listens on (`addr` may have port 0).
///
/// # Errors
/// When the address cannot be bound, or the thread or its event loop not made.
pub fn serve_http(addr: SocketAddr, registry: Registry) -> io::Result<SocketAddr> {
    let lost = registry
        .counter("saker_log_lines_lost_total", "Lines of the log that could not be written");
    let listener = TcpListener::bind(addr)?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    crate::thread::spawn("saker-http", move || {
        let served = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router(registry, lost)).await
        });
        if let Err(error) = served {
            tracing::error!("HTTP on {bound} stopped: {error}");
        }
    })?;
    Ok(bound)
}

/// `lines_lost` counts what the log counts, too: it is brought up to date when it is read.
fn router(registry: Registry, lines_lost: Counter) -> Router {
    let metrics = move || async move {
        lines_lost.add(super::log::lines_lost() - lines_lost.get());
        ([(CONTENT_TYPE, OPEN_METRICS)], registry.encode())
    };
    Router::new().route("/metrics", get(metrics)).route("/healthz", get(|| async { "ok\n" }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn fetch(addr: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(addr).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn serves_metrics_and_health() {
        let registry = Registry::new();
        let counter = registry.counter("saker_wal_flushes_total", "Journal flushes");
        let addr = serve_http("127.0.0.1:0".parse().unwrap(), registry).unwrap();
        counter.add(2);
        let metrics = fetch(addr, "/metrics");
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("application/openmetrics-text"), "{metrics}");
        assert!(metrics.contains("\nsaker_wal_flushes_total 2\n"), "{metrics}");
        counter.inc();
        assert!(fetch(addr, "/metrics").contains("\nsaker_wal_flushes_total 3\n"));
        assert!(fetch(addr, "/healthz").ends_with("\r\n\r\nok\n"));
        assert!(fetch(addr, "/nothing").starts_with("HTTP/1.1 404"));
        assert!(serve_http(addr, Registry::new()).is_err(), "the port is taken");
    }
}

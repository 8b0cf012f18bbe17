//! Where datasets come from.

mod cluster;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use object_store::local::LocalFileSystem;
use object_store::{ObjectStore, ObjectStoreExt};
use rustix::io::Errno;
use saker_dataset::Manifest;
use url::Url;

use crate::error::{Error, Result};

/// An origin that does not answer for so long has failed.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// File with the manifest.
const MANIFEST: &str = "dataset.json";

/// The place that a packed dataset is in.
pub trait Origin: Send + Sync {
    /// A whole file.
    ///
    /// # Errors
    /// ENOENT: it is not there. Of the place.
    fn get(&self, name: &str) -> BoxFuture<'_, Result<Bytes>>;

    /// A part of a file.
    ///
    /// # Errors
    /// ENOENT: it is not there. Of the place.
    fn read(&self, name: &str, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>>;
}

/// A directory, or a prefix of a bucket.
struct Objects {
    /// As the user named it.
    place: String,
    store: Box<dyn ObjectStore>,
    prefix: object_store::path::Path,
}

/// The origin at a directory, at a URL of an object store, or in a cluster
/// (`saker://HOST:PORT[,HOST:PORT]/NAME@VERSION`). What an object store needs besides (keys, regions,
/// endpoints) comes from the environment, as AWS_ACCESS_KEY_ID.
///
/// # Errors
/// EINVAL: neither. ENOENT: no such directory.
pub fn open(place: &str) -> Result<Arc<dyn Origin>> {
    if let Some(rest) = place.strip_prefix(cluster::SCHEME) {
        return Ok(Arc::new(cluster::ClusterOrigin::new(place, rest)?));
    }
    let (store, prefix) = match place.contains("://") {
        true => of_url(place)?,
        false => (of_dir(Path::new(place))?, object_store::path::Path::default()),
    };
    Ok(Arc::new(Objects { place: place.to_owned(), store, prefix }))
}

fn of_dir(dir: &Path) -> Result<Box<dyn ObjectStore>> {
    std::fs::read_dir(dir).map_err(|e| Error::file(dir, e))?;
    let store = LocalFileSystem::new_with_prefix(dir);
    Ok(Box::new(store.map_err(|e| Error::new(Errno::INVAL, e))?))
}

fn of_url(place: &str) -> Result<(Box<dyn ObjectStore>, object_store::path::Path)> {
    let wrong = |why: &dyn std::fmt::Display| Error::new(Errno::INVAL, format!("{place}: {why}"));
    let url = Url::parse(place).map_err(|e| wrong(&e))?;
    let options: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("AWS_"))
        .collect();
    object_store::parse_url_opts(&url, options).map_err(|e| wrong(&e))
}

impl Objects {
    async fn fetch(&self, name: &str, range: Option<Range<u64>>) -> Result<Bytes> {
        let at = self.prefix.clone().join(name);
        let fetch = async {
            match range {
                Some(range) => self.store.get_range(&at, range).await,
                None => self.store.get(&at).await?.bytes().await,
            }
        };
        match tokio::time::timeout(ANSWER_WITHIN, fetch).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => Err(self.failure(name, &error)),
            Err(_) => {
                let what = format!("{}/{name}: no answer of the origin", self.place);
                Err(Error::new(Errno::TIMEDOUT, what))
            }
        }
    }

    fn failure(&self, name: &str, error: &object_store::Error) -> Error {
        let at = format!("{}/{name}", self.place.trim_end_matches('/'));
        match error {
            object_store::Error::NotFound { .. } => {
                Error::new(Errno::NOENT, format!("{at}: not there"))
            }
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => {
                Error::new(Errno::ACCESS, format!("{at}: permission denied"))
            }
            error => {
                let text = error.to_string();
                let line = text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
                Error::new(Errno::IO, format!("{at}: {line}"))
            }
        }
    }
}

impl Origin for Objects {
    fn get(&self, name: &str) -> BoxFuture<'_, Result<Bytes>> {
        let name = name.to_owned();
        async move { self.fetch(&name, None).await }.boxed()
    }

    fn read(&self, name: &str, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        let name = name.to_owned();
        async move {
            let bytes = self.fetch(&name, Some(range.clone())).await?;
            if bytes.len() as u64 == range.end - range.start {
                return Ok(bytes);
            }
            let what = format!("{}/{name}: shorter than {} bytes", self.place, range.end);
            Err(Error::new(Errno::IO, what))
        }
        .boxed()
    }
}

/// The manifest of a dataset at a directory or a URL; for commands, which are no async functions.
///
/// # Errors
/// Of the place; it is no manifest.
pub fn manifest(place: &str) -> Result<Manifest> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Error::io("runtime", e))?;
    let bytes = runtime.block_on(async { open(place)?.get(MANIFEST).await })?;
    Ok(Manifest::parse(&bytes, Path::new(&format!("{place}/{MANIFEST}")))?)
}

//! Blob digests, written as `sha256:…` or `sha512:…`.

use super::files::Blob;
use parking_lot::Mutex;
use sha2::{Digest, Sha256, Sha512};
use std::io::{self, Read};
use std::sync::Arc;

const BUFFER: usize = 256 << 10;

pub(super) enum Hash {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hash {
    /// A hasher for the algorithm of `digest`.
    pub(super) fn of(digest: &str) -> Result<Self, String> {
        match digest.split_once(':') {
            Some(("sha256", _)) => Ok(Self::Sha256(Sha256::new())),
            Some(("sha512", _)) => Ok(Self::Sha512(Sha512::new())),
            _ => Err(format!("digests like {digest:?} are not known; sha256 and sha512 are")),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    pub(super) fn finish(&self) -> String {
        use std::fmt::Write;
        let (name, bytes) = match self {
            Self::Sha256(hash) => ("sha256", hash.clone().finalize().to_vec()),
            Self::Sha512(hash) => ("sha512", hash.clone().finalize().to_vec()),
        };
        bytes.iter().fold(format!("{name}:"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// Checks a whole blob against its digest.
pub(super) fn verify(blob: &Blob, digest: &str) -> Result<(), String> {
    let mut hash = Hash::of(digest)?;
    let mut reader = blob.reader();
    let mut buf = vec![0; BUFFER];
    loop {
        match reader.read(&mut buf) {
            Ok(0) => return compare(digest, &hash.finish()),
            Ok(n) => hash.update(&buf[..n]),
            Err(e) => return Err(format!("cannot read blob {digest}: {e}")),
        }
    }
}

pub(super) fn compare(expected: &str, found: &str) -> Result<(), String> {
    match expected == found {
        true => Ok(()),
        false => Err(format!("blob {expected} is damaged: its digest is {found}")),
    }
}

/// Hashes everything read through it.
pub(super) struct Hashing<R> {
    inner: R,
    hash: Arc<Mutex<Hash>>,
}

impl<R> Hashing<R> {
    pub(super) fn new(inner: R, hash: Arc<Mutex<Hash>>) -> Self {
        Self { inner, hash }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hash.lock().update(&buf[..n]);
        Ok(n)
    }
}

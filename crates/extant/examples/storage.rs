//! Volumes in a program's own storage: in memory, behind a cipher, and in parts fetched on demand.
//!
//!     cargo run --example storage

use extant::{OpenOptions, Storage, Volume};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

/// A volume in memory.
#[derive(Clone)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Storage for Memory {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// Storage whose bytes are not those of the volume. A real one would use AES-XTS by sector; this
/// one only shows where the cipher goes.
struct Ciphered<S> {
    inner: S,
    key: u8,
}

impl<S: Storage> Storage for Ciphered<S> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(at, to)?;
        to.iter_mut().for_each(|byte| *byte ^= self.key);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let coded: Vec<u8> = bytes.iter().map(|byte| byte ^ self.key).collect();
        self.inner.write_at(at, &coded)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// An object store that is read by ranges of 64 KiB, each fetched once. It cannot be written.
struct Ranges<F> {
    size: u64,
    fetch: F,
    fetched: Mutex<HashMap<u64, Arc<Vec<u8>>>>,
}

const RANGE_BYTES: u64 = 64 << 10;

impl<F: Fn(u64, u64) -> io::Result<Vec<u8>> + Send + Sync + 'static> Storage for Ranges<F> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, mut at: u64, mut to: &mut [u8]) -> io::Result<()> {
        while !to.is_empty() {
            let (range, within) = (at / RANGE_BYTES, (at % RANGE_BYTES) as usize);
            let known = self.fetched.lock().unwrap().get(&range).cloned();
            let bytes = match known {
                Some(bytes) => bytes,
                None => {
                    let start = range * RANGE_BYTES;
                    let bytes = Arc::new((self.fetch)(start, RANGE_BYTES.min(self.size - start))?);
                    self.fetched.lock().unwrap().insert(range, bytes.clone());
                    bytes
                }
            };
            let count = to.len().min(bytes.len() - within);
            to[..count].copy_from_slice(&bytes[within..][..count]);
            (at, to) = (at + count as u64, &mut to[count..]);
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk.img");
    Volume::create(&path, 16 << 20)?.close()?;

    // In memory, behind a cipher.
    let plain = std::fs::read(&path)?;
    let coded = Memory(Arc::new(Mutex::new(plain.iter().map(|byte| byte ^ 0x5a).collect())));
    let storage = Ciphered { inner: coded.clone(), key: 0x5a };
    let volume = Volume::open_storage("ciphered", storage, &OpenOptions::new().write(true))?;
    volume.root().write("secret", "only with the key\n")?;
    volume.close()?;
    assert!(!coded.0.lock().unwrap().windows(8).any(|bytes| bytes == b"only wit"));

    // The same volume, as an object that is fetched by ranges.
    let object: Vec<u8> = coded.0.lock().unwrap().iter().map(|byte| byte ^ 0x5a).collect();
    let fetches = Arc::new(Mutex::new(0));
    let counted = fetches.clone();
    let size = object.len() as u64;
    let fetch = move |at: u64, bytes: u64| {
        *counted.lock().unwrap() += 1;
        Ok(object[at as usize..][..bytes as usize].to_vec())
    };
    let store = Ranges { size, fetch, fetched: Mutex::default() };
    let volume = Volume::open_storage("object", store, &OpenOptions::new())?;
    print!("{}", String::from_utf8(volume.read("/secret")?)?);
    println!("fetched {} of {} ranges", fetches.lock().unwrap(), size.div_ceil(RANGE_BYTES));
    Ok(())
}

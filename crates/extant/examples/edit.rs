//! Adds a line to a file of a volume, so that a power cut leaves the old file or the new one.
//!
//!     cargo run --example edit -- disk.img etc/hosts "10.0.0.1 gateway"

use extant::{Error, OpenOptions, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, path, line] = args.as_slice() else {
        return Err("usage: edit IMAGE PATH LINE".into());
    };
    let volume = Volume::open(image, &OpenOptions::new().write(true))?;
    let root = volume.root();
    let (mut text, mode) = match root.metadata(path) {
        Ok(metadata) => (root.read(path)?, metadata.mode() & 0o7777),
        Err(Error::NotFound(_)) => (Vec::new(), 0o644),
        Err(error) => return Err(error.into()),
    };
    text.extend_from_slice(line.as_bytes());
    text.push(b'\n');
    // A file without a name, which takes over the old name once its contents are on the disk.
    let new = root.tempfile(mode)?;
    new.write_all_at(0, &text)?;
    new.sync_all()?;
    root.link_file_over(&new, path)?;
    volume.sync()?;
    drop(new);
    volume.close()?;
    Ok(())
}

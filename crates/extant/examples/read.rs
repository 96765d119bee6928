//! Prints a file of a volume.
//!
//!     cargo run --example read -- disk.img /etc/hostname

use extant::{OpenOptions, Volume};
use std::error::Error;
use std::io::{self, Read, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let (Some(image), Some(path)) = (std::env::args_os().nth(1), std::env::args().nth(2)) else {
        return Err("usage: read IMAGE PATH".into());
    };
    let volume = Volume::open(image, &OpenOptions::new())?;
    let mut file = volume.open_file(&path)?;
    let mut part = vec![0; 1 << 20];
    loop {
        let bytes = file.read(&mut part)?;
        if bytes == 0 {
            return Ok(());
        }
        io::stdout().write_all(&part[..bytes])?;
    }
}

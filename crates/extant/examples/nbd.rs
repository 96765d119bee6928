//! Writes a file to a volume that an NBD server exports, and makes it durable there.
//!
//!     qemu-nbd --format=raw --socket=/tmp/nbd.sock disk.img &
//!     cargo run --example nbd -- 'nbd+unix:///?socket=/tmp/nbd.sock'

use extant::{OpenOptions, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(address) = std::env::args_os().nth(1) else {
        return Err("usage: nbd ADDRESS".into());
    };
    let volume = Volume::open(address, &OpenOptions::new().write(true))?;
    volume.root().write("greeting", "over the network\n")?;
    volume.close()?; // flushes the server's disk, too
    Ok(())
}

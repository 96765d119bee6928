//! Lists everything on a volume, with sizes. What cannot be read is reported, and the walk goes on.
//!
//!     cargo run --example walk -- disk.img

use extant::{OpenOptions, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(image) = std::env::args_os().nth(1) else {
        return Err("usage: walk IMAGE".into());
    };
    let volume = Volume::open(image, &OpenOptions::new())?;
    let (mut files, mut bytes, mut failed) = (0, 0, 0);
    for met in volume.walk() {
        match met {
            Ok((path, metadata)) => {
                println!("{:>12} {}", metadata.len(), path.escape_ascii());
                if metadata.is_file() {
                    files += 1;
                    bytes += metadata.len();
                }
            }
            Err(error) => {
                eprintln!("walk: {error}");
                failed += 1;
            }
        }
    }
    println!("{files} files, {bytes} bytes");
    if failed > 0 {
        return Err(format!("{failed} paths could not be read").into());
    }
    Ok(())
}

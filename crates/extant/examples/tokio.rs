//! Tasks of tokio read the files of a directory, many at a time.
//!
//! The volume's I/O is done by threads of its own, so no thread of tokio waits for a disk.
//!
//!     cargo run --example tokio -- disk.img etc

use extant::asynch::Volume;
use extant::{FileType, OpenOptions};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (Some(image), Some(path)) = (std::env::args_os().nth(1), std::env::args().nth(2)) else {
        return Err("usage: tokio IMAGE DIRECTORY".into());
    };
    let volume = Volume::open(image, &OpenOptions::new()).await?;
    let dir = volume.root().open_dir(&path).await?;
    let mut readers = JoinSet::new();
    for entry in dir.entries().await? {
        if entry.file_type.is_some_and(FileType::is_file) {
            let dir = dir.clone();
            readers.spawn(async move {
                let bytes = dir.read(&entry.name).await?;
                Ok::<_, extant::Error>((entry.name, bytes.len()))
            });
        }
    }
    while let Some(read) = readers.join_next().await {
        let (name, bytes) = read??;
        println!("{bytes:>12} {}", name.escape_ascii());
    }
    Ok(())
}

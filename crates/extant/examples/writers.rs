//! Several threads write to one volume, each its own file and all one log. What a thread has synced
//! survives a power cut.
//!
//!     cargo run --example writers -- disk.img

use extant::{FileOptions, OpenOptions, Result, Volume};

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let Some(image) = std::env::args_os().nth(1) else {
        return Err("usage: writers IMAGE".into());
    };
    let volume = Volume::open(image, &OpenOptions::new().write(true))?;
    let root = volume.root();
    root.create_dir_all("parts")?;
    let log = root.open_with("log", FileOptions::new().append(true).create(true))?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|n| {
                let (root, log) = (&root, &log);
                scope.spawn(move || -> Result<()> {
                    let part = root.create(format!("parts/{n}"))?;
                    part.write_all_at(0, &vec![n; 100_000])?;
                    part.sync_all()?;
                    // Appends, wherever the end is by then.
                    log.write_all_at(0, format!("part {n} is there\n").as_bytes())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer panicked"))
    })?;
    log.sync_all()?;
    print!("{}", String::from_utf8(root.read("log")?)?);
    drop((log, root));
    volume.close()?;
    Ok(())
}

//! Builds a volume from a directory, then checks it. Needs the features `build` and `check`.
//!
//!     cargo run --example build --features build,check -- rootfs disk.img

use extant::image::{BuildOptions, Source, build};
use extant::{OpenOptions, Rt, Volume, check};
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [folder, image] = args.as_slice() else {
        return Err("usage: build DIRECTORY IMAGE".into());
    };
    let rt = Rt::real(Default::default());
    let options = BuildOptions::new(image);
    let report = build(&options, &[Source::Directory(folder.into())], &rt, Arc::new(|_, _| {}))?;
    for note in &report.notes {
        eprintln!("build: {note}");
    }
    let volume = Volume::open(image, &OpenOptions::new())?;
    let checked = volume.check(check::Options::default())?;
    assert!(checked.is_clean(), "a volume that was just built has no damage");
    println!("{} files in {} bytes", report.files, report.image_bytes);
    Ok(())
}

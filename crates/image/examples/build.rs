//! Builds an image from the command line, for measuring: `build OUTPUT SOURCE…`.

use extant_image::{BuildOptions, Ownership, Source, VolumeOptions, build};
use extant_rt::Rt;
use std::sync::Arc;

fn main() {
    let mut args = std::env::args_os().skip(1);
    let Some(output) = args.next() else {
        eprintln!("usage: build OUTPUT SOURCE…");
        std::process::exit(2);
    };
    let sources: Vec<_> = args.map(|path| Source::Guess(path.into())).collect();
    let options = BuildOptions {
        output: output.into(),
        volume: VolumeOptions::default(),
        ownership: Ownership::Source,
        clamp_time: None,
        one_file_system: false,
        platform: None,
    };
    let rt = Rt::real(Default::default());
    match build(&options, &sources, &rt, Arc::new(|_, _| {})) {
        Ok(report) => println!("{report:?}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}

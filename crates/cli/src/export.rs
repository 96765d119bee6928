//! `extant export`.

use crate::args::ExportArgs;
use crate::failure::Failure;
use crate::globs;
use crate::image_path::{ImagePath, plain_names};
use crate::progress::Progress;
use crate::report::{self, JsonLoss, Reporter};
use crate::session::{Access, Session, used_bytes};
use extant_fs::{Follow, Volume, quote};
use extant_image::export::{Archive, Compression, Exported, to_tar, to_tar_of};
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(crate) fn run(session: &mut Session, args: &ExportArgs) -> Result<(), Failure> {
    let places = globs::expanded(session, &args.places, &args.open)?;
    let first = places.first().expect("clap wants one");
    if let Some(other) = places.iter().find(|place| place.image != first.image) {
        let (image, other) = (first.image_quoted(), other.image_quoted());
        return Err(Failure::Usage(format!(
            "an archive is of one image: {image} and {other} go into two, or into a volume with extant build"
        )));
    }
    let volume = session.volume(first, &args.open, Access::Contents)?;
    let output = quote(args.output.as_os_str().as_bytes());
    if args.output.as_os_str() == "-" {
        if args.json {
            return Err(Failure::Usage(
                "with --json the archive cannot be standard output; name a file".into(),
            ));
        }
        if std::io::stdout().is_terminal() {
            return Err(Failure::Usage(
                "an archive is not written to a terminal; name a file or a pipe".into(),
            ));
        }
        let file = session.out.duplicate()?;
        let mut out = std::io::BufWriter::with_capacity(256 << 10, file);
        let (done, _) = write(session, args, &places, &volume, "standard output", &mut out)?;
        out.flush().map_err(Failure::stdout)?;
        return report::print(session, "", &done, None);
    }
    let host = |error| Failure::host(&args.output, error);
    let other = || Failure::Usage(format!("{output}: archives are compressed with gzip, zstd or xz only"));
    let compression = Compression::of(&args.output).ok_or_else(other)?;
    let create = |error| match args.output.parent().filter(|_| !args.output.exists()) {
        // The file is created under a temporary name, so the error concerns the directory.
        Some(parent) if parent.as_os_str().is_empty() => Failure::host(Path::new("."), error),
        Some(parent) => Failure::host(parent, error),
        None => host(error),
    };
    let _claim = Session::claim_output(&args.output, &first.image)?;
    let mut archive = Archive::create(&args.output, compression).map_err(create)?;
    let (done, lost) = write(session, args, &places, &volume, &output, &mut archive)?;
    archive.finish().map_err(host)?;
    report::print(session, &output, &done, args.json.then_some(lost))
}

/// Writes the archive. Returns what was written and, for JSON, what was lost.
fn write(
    session: &mut Session,
    args: &ExportArgs,
    places: &[ImagePath],
    volume: &Volume,
    output: &str,
    out: &mut dyn Write,
) -> Result<(Exported, Vec<JsonLoss>), Failure> {
    let rt = session.rt.clone();
    let progress = Progress::new(used_bytes(volume), session.quiet);
    let selection = args.selection.to_selection();
    if let [place] = places {
        let mut reporter = Reporter::new(session, place, progress, args.json);
        let name = place.file_name().map_or(&b"."[..], OsStrExt::as_bytes);
        let written = rt.block_on(async {
            let top = place.resolve(volume, Follow::No).await?;
            to_tar(volume, &top, name, &selection, out, &mut reporter).await
        })?;
        let lost = reporter.finish();
        return written.map(|done| (done, lost)).map_err(|error| report::failure(place, output, error));
    }
    let mut tops = Vec::new();
    for place in places {
        let top = rt.block_on(place.resolve(volume, Follow::No))?;
        tops.push((plain_names(&place.path), top.map_err(|error| Failure::at(place, error))?));
    }
    let root = ImagePath { image: places[0].image.clone(), path: b"/".to_vec() };
    let mut reporter = Reporter::new(session, &root, progress, args.json);
    let written = rt.block_on(to_tar_of(volume, &tops, &selection, out, &mut reporter))?;
    let lost = reporter.finish();
    written.map(|done| (done, lost)).map_err(|error| report::failure(&root, output, error))
}

//! Lists extended attributes in the form of `getfattr --dump`.

use crate::args::ImageArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::output::outln;
use crate::session::{Access, Session};
use extant_fs::{Follow, quote};
use std::ffi::OsString;

pub(super) fn list(session: &mut Session, paths: &[OsString]) -> Result<(), Failure> {
    for path in paths {
        let place = ImagePath::parse(path.clone());
        let volume = session.volume(&place, &ImageArgs::default(), Access::Metadata)?;
        let rt = session.rt.clone();
        let attributes = rt.block_on(async {
            let inode = volume.resolve(&place.path, Follow::No).await?;
            volume.xattrs(&inode).await
        })?;
        let attributes = attributes.map_err(|error| Failure::at(&place, error))?;
        if attributes.is_empty() {
            continue;
        }
        outln!(session.out, "# file: {}", quote(&place.path))?;
        for attribute in attributes {
            outln!(session.out, "{}={}", quote(&attribute.name), value(&attribute.value))?;
        }
        session.out.write(b"\n")?;
    }
    Ok(())
}

/// Formats text in quotes and anything else in hexadecimal; both can be set again as they are
/// printed.
fn value(bytes: &[u8]) -> String {
    let is_text = |&byte: &u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    let is_encoded = bytes.starts_with(b"0x") || bytes.starts_with(b"0s");
    match bytes.iter().all(is_text) && !is_encoded {
        true => format!("\"{}\"", String::from_utf8_lossy(bytes)),
        false => bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}")),
    }
}

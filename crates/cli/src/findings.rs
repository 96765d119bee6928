//! Findings of checks, in words and as JSON.

use crate::args::SuperblockAt;
use crate::check_args::CheckArgs;
use crate::failure::Failure;
use crate::json::Bytes;
use crate::session::Session;
use extant_check::{CheckError, Code, Finding, Spot};
use extant_fs::quote;
use serde::Serialize;

/// Why a volume could not be checked.
pub(crate) fn failure(session: &Session, args: &CheckArgs, error: CheckError) -> Failure {
    match error {
        CheckError::NoVolume(corrupt) => {
            session.not_opened(&args.image, args.open.superblock.and_then(SuperblockAt::byte), corrupt.into())
        }
        CheckError::Unsupported(feature) => {
            let error = extant_fs::Error::Unsupported { feature, hint: "" };
            session.not_opened(&args.image, args.open.superblock.and_then(SuperblockAt::byte), error)
        }
        CheckError::World(error) => error.into(),
        CheckError::Device(error) => session.not_opened(&args.image, None, error.into()),
        error @ CheckError::TooMuch => Failure::host(&args.image, std::io::Error::other(error)),
        error => Failure::Usage(error.to_string()),
    }
}

/// One finding, on one line.
pub(crate) fn line(finding: &Finding) -> String {
    let mut text = format!("{}: ", finding.code);
    let place = place(&finding.spot);
    text.push_str(&place);
    if let Some(path) = &finding.path {
        text.push_str(&format!("{}({})", if place.is_empty() { "" } else { " " }, quote(path)));
    }
    if let Some(name) = &finding.name {
        text.push_str(&format!(", entry {}", quote(name)));
    }
    let separator = if place.is_empty() { "" } else { ": " };
    text.push_str(&format!("{separator}{}", finding.found));
    if !finding.expected.is_empty() {
        text.push_str(&format!("; expected {}", finding.expected));
    }
    if finding.suspected {
        text.push_str(" (suspected)");
    }
    extant_fs::printable(&text).into_owned()
}

/// Describes where a finding is.
pub(crate) fn place(spot: &Spot) -> String {
    let mut parts = Vec::new();
    let mut add = |what: &str, number: Option<u64>| {
        if let Some(number) = number {
            parts.push(format!("{what} {number}"));
        }
    };
    add("group", spot.group.map(u64::from));
    add("inode", spot.inode.map(u64::from));
    add("file block", spot.file_block);
    add("block", spot.block);
    add("offset", spot.offset.map(u64::from));
    parts.join(", ")
}

#[derive(Serialize)]
pub(crate) struct JsonFinding<'a> {
    code: &'static str,
    structure: &'static str,
    severity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_block: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Bytes<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Bytes<'a>>,
    found: &'a str,
    expected: &'a str,
    suspected: bool,
    meaning: &'static str,
    repair: &'static str,
    lost: &'static str,
}

impl<'a> JsonFinding<'a> {
    pub(crate) fn new(finding: &'a Finding) -> Self {
        let (code, spot): (Code, &Spot) = (finding.code, &finding.spot);
        Self {
            code: code.as_str(),
            structure: code.structure(),
            severity: code.severity().to_string(),
            group: spot.group,
            inode: spot.inode,
            block: spot.block,
            file_block: spot.file_block,
            offset: spot.offset,
            path: finding.path.as_deref().map(Bytes),
            name: finding.name.as_deref().map(Bytes),
            found: &finding.found,
            expected: &finding.expected,
            suspected: finding.suspected,
            meaning: code.meaning(),
            repair: code.repair(),
            lost: code.lost(),
        }
    }
}

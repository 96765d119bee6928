//! Errors of NBD servers and their URIs.

use std::io;

/// Why there is no connection, or no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address cannot be understood.
    #[error("{uri} is not an NBD URI: {why}")]
    Uri {
        /// The address as given.
        uri: String,
        /// The mistake in it.
        why: &'static str,
    },
    /// The server cannot be reached, or the connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// No answer in time.
    #[error("the server does not answer")]
    Silent,
    /// The server speaks the protocol's first form, without options.
    #[error(
        "the server speaks the oldstyle protocol; start it in newstyle mode (nbdkit -n; qemu-nbd does by itself)"
    )]
    Oldstyle,
    /// The server does not give the export.
    #[error("the export '{export}' is refused: {reason}{}{message}", if .message.is_empty() { "" } else { ": " })]
    Refused {
        /// The export's name.
        export: String,
        /// The protocol's name of it.
        reason: &'static str,
        /// The server's message.
        message: String,
    },
    /// After a reconnection the export is not what it was.
    #[error("the export has changed while the connection was lost")]
    Changed,
    /// A virtual world has no network.
    #[error("a virtual world has no network")]
    Virtual,
    /// A number that every message starts with is another.
    #[error("protocol: the {what} starts with {found:#x}")]
    Magic {
        /// Which message.
        what: &'static str,
        /// The bytes that it starts with.
        found: u64,
    },
    /// A reply to an option that was not asked last.
    #[error("protocol: option {asked} was asked, {answered} answered")]
    OtherOption {
        /// Which was asked.
        asked: u32,
        /// Which was answered.
        answered: u32,
    },
    /// A reply that the option does not have.
    #[error("protocol: option {option} is answered with {kind:#x}")]
    OptionReply {
        /// The option.
        option: u32,
        /// The kind of the reply.
        kind: u32,
    },
    /// An option reply that is too long to be true.
    #[error("protocol: an option reply of {0} bytes")]
    OptionLength(u32),
    /// Information about the export that has not the length it must have.
    #[error("protocol: {0} bytes of information about the export")]
    InfoLength(usize),
    /// The server gives the export without saying how large it is.
    #[error("protocol: the export is given without its size")]
    NoExportInfo,
    /// Block sizes that are not powers of two in order.
    #[error("protocol: block sizes {0:?}")]
    BlockSizes([u32; 3]),
    /// An answer to nothing that was asked, or to what was not asked in full yet.
    #[error("protocol: a reply to nothing that was asked, cookie {0:#x}")]
    Cookie(u64),
    /// A chunk that has not the length it must have.
    #[error("protocol: a chunk of kind {kind} and {length} bytes")]
    ChunkLength {
        /// Its kind.
        kind: u16,
        /// Its length.
        length: u32,
    },
    /// A chunk of a kind that we did not ask for.
    #[error("protocol: a chunk of unknown kind {0}")]
    ChunkKind(u16),
    /// A chunk without content must be the last.
    #[error("protocol: an empty chunk that is not the last")]
    NothingNotDone,
    /// A read is answered in a form that was not agreed on.
    #[error("protocol: a {0} reply to a read, which was not agreed on")]
    Form(&'static str),
    /// Data for something other than a read.
    #[error("protocol: data in the reply to a command that reads nothing")]
    UnexpectedData,
    /// Data outside of what was asked for, or twice for the same place.
    #[error("protocol: {bytes} bytes of data at {offset}, which was not asked for or has been answered")]
    Place {
        /// Where, from the start of the export.
        offset: u64,
        /// How many.
        bytes: u32,
    },
    /// A read that is answered in part only.
    #[error("protocol: a read of {asked} bytes is answered with {got}")]
    Incomplete {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that came.
        got: u64,
    },
}

impl NbdError {
    /// Whether the server broke the protocol, so that asking again is no use.
    pub(super) fn is_protocol(&self) -> bool {
        !matches!(
            self,
            Self::Uri { .. }
                | Self::Io(_)
                | Self::Closed
                | Self::Silent
                | Self::Oldstyle
                | Self::Refused { .. }
                | Self::Changed
                | Self::Virtual
        )
    }
}

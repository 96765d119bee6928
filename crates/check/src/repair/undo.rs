//! The undo file: the old contents of every block that a repair changes, durable before the first
//! of these blocks is written.
//!
//! ```text
//! header (4 KiB) | table, a row for each block | old blocks
//! row: block (8 bytes) | checksum of its old contents (4) | of each new sector (4 each)
//! ```
//!
//! The header is written last and fits a sector, so it is written as a whole or not at all; without
//! it, nothing was written to the volume. Its state says how far the repair has come. It also names
//! the volume: its UUID before and after the repair, where it begins, and its size. Blocks that do
//! not change may have rows, too: they show whether the volume was used since then.

use extant_block::{Buf, Device, IoError, Sector, flush, read, write};
use extant_format::crc32c;
use std::ops::Range;
use thiserror::Error;

/// Bytes of the header.
const HEADER_BYTES: usize = 4096;
/// Bytes of the header that its checksum covers.
const SEALED_BYTES: usize = 508;
const MAGIC: &[u8; 8] = b"ExtUndo2";
/// Bytes of a sector, the smallest unit that a device writes as a whole.
pub(super) const SECTOR_BYTES: usize = 512;
/// Bytes of a row without the checksums of sectors.
const ROW_BYTES: usize = 12;
/// Maximum block size of a volume.
const UNIT_MAX: usize = 64 << 10;
/// Bytes of one write.
const PIECE: usize = 1 << 20;
/// Where a volume's UUID is: the superblock begins at 1024, with `s_uuid` at 0x68.
const UUID_AT: u64 = 1024 + 0x68;

/// How far a repair has come, according to its undo file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UndoState {
    /// The volume is being written: any of the blocks may be old, new or torn.
    Open,
    /// All blocks are new.
    Done,
    /// The old blocks are being put back.
    Undoing,
    /// All blocks are old again.
    Undone,
}

impl UndoState {
    const ALL: [Self; 4] = [Self::Open, Self::Done, Self::Undoing, Self::Undone];

    fn code(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Done => 2,
            Self::Undoing => 3,
            Self::Undone => 4,
        }
    }
}

/// Why a repair was not made, or not undone.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UndoError {
    /// The device or the undo file could not be read or written.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Another host has taken the volume meanwhile.
    #[error("{0}; nothing more was written")]
    Taken(#[from] extant_fs::Error),
    /// The undo file could not be written.
    #[error("the undo file could not be written ({0}), so the volume was not changed")]
    NotKept(IoError),
    /// The undo file is empty or was not finished, so nothing of the volume was written.
    #[error("the undo file is not complete, so the repair had not begun to write; there is nothing to undo")]
    Empty,
    /// The undo file is damaged.
    #[error("the undo file is damaged: {0}; the volume was not changed")]
    Damaged(&'static str),
    /// The undo file belongs to another volume.
    #[error("the undo file belongs to another volume: {0}")]
    Foreign(String),
    /// A block, or a part of one, has neither the contents from before the repair nor those from
    /// after it.
    #[error(
        "block {0} was changed after the repair; undoing it would mix old and new, so the volume was not changed"
    )]
    Changed(u64),
    /// A block was changed after the repair was planned.
    #[error("block {0} was changed while the repair was planned, so nothing was written; run it again")]
    Raced(u64),
    /// The undo file has no room for the old blocks.
    #[error("the undo file has {have} bytes, {needed} are needed; the volume was not changed")]
    TooSmall {
        /// Size of the undo file in bytes.
        have: u64,
        /// Bytes that the old blocks need.
        needed: u64,
    },
}

/// Which volume an undo file is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Where it begins in its file or device, in bytes.
    pub offset_bytes: u64,
    /// Byte offset of the block that a [`Guard`](super::Guard) counts in.
    pub counter_at: Option<u64>,
}

/// A block and the checksums of its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) block: u64,
    pub(super) old: u32,
    /// Checksum of each sector of the new contents.
    pub(super) new: Vec<u32>,
}

/// A block to be changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edit<'a> {
    pub(super) block: u64,
    /// Checksum of the block's contents when the repair was planned.
    pub(super) old: u32,
    /// The new contents; `None` if the block stays as it is.
    pub(super) new: Option<&'a [u8]>,
}

/// The contents of an undo file.
#[derive(Clone, Debug)]
pub struct UndoFile {
    pub(super) state: UndoState,
    uuid_before: [u8; 16],
    uuid_after: [u8; 16],
    offset_bytes: u64,
    capacity_bytes: u64,
    pub(super) unit_bytes: usize,
    pub(super) rows: Vec<Row>,
}

/// Pads bytes to a whole number of sectors, for a device.
fn padded(bytes: &[u8]) -> Buf {
    let mut buf = Buf::zeroed(bytes.len().next_multiple_of(HEADER_BYTES));
    buf[..bytes.len()].copy_from_slice(bytes);
    buf
}

pub(super) fn sector(byte: u64) -> Sector {
    Sector::containing(byte)
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn chunk16(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes[at..].first_chunk().copied().unwrap_or_default()
}

/// Formats a UUID as users know it.
fn shown(uuid: [u8; 16]) -> String {
    let hex = |range: Range<usize>| uuid[range].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    [hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16)].join("-")
}

/// Checksums of each sector.
pub(super) fn sector_sums(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(SECTOR_BYTES).map(|sector| crc32c(!0, sector)).collect()
}

fn row_bytes(unit_bytes: usize) -> usize {
    ROW_BYTES + unit_bytes / SECTOR_BYTES * 4
}

fn table_bytes(rows: usize, unit_bytes: usize) -> usize {
    (rows * row_bytes(unit_bytes)).next_multiple_of(HEADER_BYTES)
}

impl UndoFile {
    /// The length of an undo file for this many blocks.
    pub(super) fn bytes_for(blocks: usize, unit_bytes: usize) -> u64 {
        let data = (blocks * unit_bytes).next_multiple_of(HEADER_BYTES);
        wide(HEADER_BYTES + table_bytes(blocks, unit_bytes) + data)
    }

    /// How far the repair has come.
    pub fn state(&self) -> UndoState {
        self.state
    }

    /// Number of blocks whose old contents are kept.
    pub fn blocks(&self) -> usize {
        self.rows.len()
    }

    /// Checks that the undo file belongs to a volume.
    ///
    /// # Errors
    /// [`UndoError::Foreign`] says why not. The volume cannot be read.
    pub async fn belongs_to(&self, volume: &dyn Device, target: Target) -> Result<(), UndoError> {
        let foreign = |text: String| Err(UndoError::Foreign(text));
        let capacity_bytes = volume.limits().capacity_bytes;
        if self.capacity_bytes != capacity_bytes {
            return foreign(format!("it has {} bytes, this one {capacity_bytes}", self.capacity_bytes));
        }
        if self.offset_bytes != target.offset_bytes {
            let (theirs, ours) = (self.offset_bytes, target.offset_bytes);
            return foreign(format!("it begins at byte {theirs} of its disk, this one at byte {ours}"));
        }
        let uuid = uuid_of(volume, self.unit_bytes).await?;
        if uuid != self.uuid_before && uuid != self.uuid_after {
            return foreign(format!("its UUID is {}, this one's {}", shown(self.uuid_after), shown(uuid)));
        }
        Ok(())
    }

    fn header(&self, state: UndoState) -> Buf {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = state.code();
        bytes[16..32].copy_from_slice(&self.uuid_before);
        bytes[32..48].copy_from_slice(&self.uuid_after);
        let longs = [self.capacity_bytes, self.offset_bytes, wide(self.unit_bytes), wide(self.rows.len())];
        for (to, long) in bytes[48..80].chunks_exact_mut(8).zip(longs) {
            to.copy_from_slice(&long.to_le_bytes());
        }
        bytes[80..84].copy_from_slice(&crc32c(!0, &self.table()).to_le_bytes());
        let sum = crc32c(!0, &bytes[..SEALED_BYTES]);
        bytes[SEALED_BYTES..SEALED_BYTES + 4].copy_from_slice(&sum.to_le_bytes());
        Buf::from_slice(&bytes)
    }

    fn table(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.rows.len() * row_bytes(self.unit_bytes));
        for row in &self.rows {
            bytes.extend(row.block.to_le_bytes());
            bytes.extend(row.old.to_le_bytes());
            bytes.extend(row.new.iter().flat_map(|sum| sum.to_le_bytes()));
        }
        bytes
    }

    fn data_at(&self) -> u64 {
        wide(HEADER_BYTES + table_bytes(self.rows.len(), self.unit_bytes))
    }

    pub(super) fn unit(&self) -> u64 {
        wide(self.unit_bytes)
    }

    /// Writes the old blocks and, once they are durable, the header. The volume is only read.
    pub(super) async fn create(
        undo: &dyn Device,
        volume: &dyn Device,
        offset_bytes: u64,
        unit_bytes: usize,
        edits: &[Edit<'_>],
    ) -> Result<Self, UndoError> {
        let needed = Self::bytes_for(edits.len(), unit_bytes);
        let have = undo.limits().capacity_bytes;
        if have < needed {
            return Err(UndoError::TooSmall { have, needed });
        }
        let uuid_before = uuid_of(volume, unit_bytes).await?;
        let mut file = Self {
            state: UndoState::Open,
            uuid_before,
            uuid_after: uuid_before,
            offset_bytes,
            capacity_bytes: volume.limits().capacity_bytes,
            unit_bytes,
            rows: Vec::with_capacity(edits.len()),
        };
        let mut at = wide(HEADER_BYTES + table_bytes(edits.len(), unit_bytes));
        let mut piece = Vec::with_capacity(PIECE);
        for &Edit { block, old, new } in edits {
            let bytes = read(volume, sector(block * file.unit()), unit_bytes).await?;
            if crc32c(!0, &bytes) != old {
                return Err(UndoError::Raced(block));
            }
            let new = new.unwrap_or(&bytes);
            if block == UUID_AT / file.unit() {
                let within = usize::try_from(UUID_AT % file.unit()).unwrap_or(0);
                file.uuid_after = chunk16(new, within);
            }
            file.rows.push(Row { block, old, new: sector_sums(new) });
            piece.extend_from_slice(&bytes);
            if piece.len() >= PIECE {
                write(undo, sector(at), padded(&piece)).await.map_err(UndoError::NotKept)?;
                at += wide(piece.len());
                piece.clear();
            }
        }
        if !piece.is_empty() {
            write(undo, sector(at), padded(&piece)).await.map_err(UndoError::NotKept)?;
        }
        let mut at = wide(HEADER_BYTES);
        for piece in file.table().chunks(PIECE) {
            write(undo, sector(at), padded(piece)).await.map_err(UndoError::NotKept)?;
            at += wide(piece.len());
        }
        flush(undo).await.map_err(UndoError::NotKept)?;
        match file.set_state(undo, UndoState::Open).await {
            Err(UndoError::Io(error)) => Err(UndoError::NotKept(error)),
            done => done.map(|()| file),
        }
    }

    /// Reads an undo file.
    ///
    /// # Errors
    /// The file has no header, is damaged, or cannot be read.
    pub async fn read(undo: &dyn Device) -> Result<Self, UndoError> {
        let have = undo.limits().capacity_bytes;
        if have < wide(HEADER_BYTES) {
            return Err(UndoError::Empty);
        }
        let header = read(undo, Sector(0), HEADER_BYTES).await?;
        if header.iter().all(|&byte| byte == 0) {
            return Err(UndoError::Empty);
        }
        if &header[..8] != MAGIC {
            return Err(UndoError::Damaged("it does not begin as one"));
        }
        if word(&header, SEALED_BYTES) != crc32c(!0, &header[..SEALED_BYTES]) {
            return Err(UndoError::Damaged("the checksum of its header is wrong"));
        }
        let state = UndoState::ALL.into_iter().find(|state| state.code() == header[8]);
        let Some(state) = state else { return Err(UndoError::Damaged("it has an unknown state")) };
        let unit_bytes = usize::try_from(long(&header, 64)).unwrap_or(0);
        let count = usize::try_from(long(&header, 72)).unwrap_or(usize::MAX);
        if !(1024..=UNIT_MAX).contains(&unit_bytes) || !unit_bytes.is_power_of_two() {
            return Err(UndoError::Damaged("its blocks have an impossible length"));
        }
        let least = wide(count).checked_mul(wide(unit_bytes));
        if least.is_none_or(|bytes| bytes > have) || Self::bytes_for(count, unit_bytes) > have {
            return Err(UndoError::Damaged("it is shorter than its header says"));
        }
        let mut file = Self {
            state,
            uuid_before: chunk16(&header, 16),
            uuid_after: chunk16(&header, 32),
            capacity_bytes: long(&header, 48),
            offset_bytes: long(&header, 56),
            unit_bytes,
            rows: Vec::new(),
        };
        let mut table = Vec::with_capacity(table_bytes(count, unit_bytes));
        while table.len() < table_bytes(count, unit_bytes) {
            let len = PIECE.min(table_bytes(count, unit_bytes) - table.len());
            table.extend_from_slice(&read(undo, sector(wide(HEADER_BYTES + table.len())), len).await?);
        }
        let row = |row: &[u8]| Row {
            block: long(row, 0),
            old: word(row, 8),
            new: (ROW_BYTES..row.len()).step_by(4).map(|at| word(row, at)).collect(),
        };
        let rows = &table[..count * row_bytes(unit_bytes)];
        file.rows = rows.chunks_exact(row_bytes(unit_bytes)).map(row).collect();
        if crc32c(!0, rows) != word(&header, 80) {
            return Err(UndoError::Damaged("the checksum of its table is wrong"));
        }
        let most = file.capacity_bytes / file.unit();
        if file.rows.iter().any(|row| row.block >= most) {
            return Err(UndoError::Damaged("it names a block behind the end of the volume"));
        }
        Ok(file)
    }

    pub(super) async fn set_state(&mut self, undo: &dyn Device, state: UndoState) -> Result<(), UndoError> {
        write(undo, Sector(0), self.header(state)).await?;
        flush(undo).await?;
        self.state = state;
        Ok(())
    }

    /// Reads the old contents of a row's block.
    pub(super) async fn old(&self, undo: &dyn Device, n: usize) -> Result<Buf, UndoError> {
        let at = self.data_at() + wide(n) * self.unit();
        // Old blocks of 1 KiB may not be aligned to the blocks of the device.
        let grain = u64::from(undo.limits().block_bytes).max(Sector::BYTES);
        let first = at / grain * grain;
        let skip = usize::try_from(at - first).unwrap_or(0);
        let len = (skip + self.unit_bytes).next_multiple_of(usize::try_from(grain).unwrap_or(SECTOR_BYTES));
        let bytes = read(undo, sector(first), len).await?;
        let old = Buf::from_slice(&bytes[skip..skip + self.unit_bytes]);
        match crc32c(!0, &old) == self.rows[n].old {
            true => Ok(old),
            false => Err(UndoError::Damaged("the checksum of an old block is wrong")),
        }
    }
}

/// Reads the bytes at the place of a volume's UUID, whether or not there is a superblock.
async fn uuid_of(volume: &dyn Device, unit_bytes: usize) -> Result<[u8; 16], UndoError> {
    let unit = wide(unit_bytes);
    if volume.limits().capacity_bytes < (UUID_AT / unit + 1) * unit {
        return Ok([0; 16]);
    }
    let bytes = read(volume, sector(UUID_AT / unit * unit), unit_bytes).await?;
    Ok(chunk16(&bytes, usize::try_from(UUID_AT % unit).unwrap_or(0)))
}

//! Copy-on-write disk images. Thousands of crash states share their unchanged blocks, so they are
//! small and cheap to create.

use extant_block::{Bio, Change, Device, IoErrorKind, Limits, Op, Sector};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// Contents of a disk: a shared base, and the pages that differ from it. Cloning copies no page.
///
/// Its [hash](Image::hash) is maintained sector by sector, so equal images are detected without
/// comparing them.
#[derive(Clone)]
pub struct Image {
    base: Arc<[u8]>,
    pages: BTreeMap<usize, Arc<[u8; PAGE]>>,
    hash: u128,
}

impl Image {
    /// An image equal to `base`, which must consist of whole 4 KiB pages.
    pub fn new(base: Arc<[u8]>) -> Self {
        assert!(base.len().is_multiple_of(PAGE), "an image has whole pages");
        Self { base, pages: BTreeMap::new(), hash: 0 }
    }

    /// Equal for equal contents over the same base; different contents collide with a probability
    /// of 2^-128.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.base.len()
    }

    /// Whether its length is zero.
    pub fn is_empty(&self) -> bool {
        self.base.is_empty()
    }

    /// All its contents.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.base.to_vec();
        for (&page, contents) in &self.pages {
            bytes[page * PAGE..][..PAGE].copy_from_slice(&contents[..]);
        }
        bytes
    }

    /// An image with these contents, of the same length and over the same base.
    pub fn holding(&self, contents: &[u8]) -> Self {
        assert_eq!(contents.len(), self.len(), "one size");
        let mut image = Self::new(self.base.clone());
        for (page, now) in contents.chunks_exact(PAGE).enumerate() {
            if *now != self.base[page * PAGE..][..PAGE] {
                image.write(page * PAGE, PAGE, Some(now));
            }
        }
        image
    }

    /// The shared base.
    pub(crate) fn base(&self) -> &Arc<[u8]> {
        &self.base
    }

    /// 4 KiB pages that differ from the base, by number.
    pub(crate) fn changed_pages(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.pages.iter().map(|(&page, contents)| (page, &contents[..]))
    }

    /// Copies bytes starting at `at`.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let mut done = 0;
        while done < to.len() {
            let (page, within) = ((at + done) / PAGE, (at + done) % PAGE);
            let n = (PAGE - within).min(to.len() - done);
            let from = self.page(page);
            to[done..done + n].copy_from_slice(&from[within..within + n]);
            done += n;
        }
    }

    fn page(&self, page: usize) -> &[u8] {
        match self.pages.get(&page) {
            Some(contents) => &contents[..],
            None => &self.base[page * PAGE..][..PAGE],
        }
    }

    /// Stores whole sectors at `at`; `None` stores zeros.
    pub fn write(&mut self, at: usize, len: usize, data: Option<&[u8]>) {
        const ZEROES: [u8; SECTOR] = [0; SECTOR];
        assert!((at | len).is_multiple_of(SECTOR), "whole sectors");
        for offset in (0..len).step_by(SECTOR) {
            let new = data.map_or(&ZEROES[..], |data| &data[offset..][..SECTOR]);
            let (page, within) = ((at + offset) / PAGE, (at + offset) % PAGE);
            let old = &self.page(page)[within..][..SECTOR];
            if old == new {
                continue;
            }
            let sector = (at + offset) / SECTOR;
            let was = &self.base[sector * SECTOR..][..SECTOR];
            self.hash ^= difference(sector, was, old) ^ difference(sector, was, new);
            let base = &self.base;
            let contents = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new(base[page * PAGE..][..PAGE].try_into().expect("a page")));
            Arc::make_mut(contents)[within..][..SECTOR].copy_from_slice(new);
        }
    }

    /// Applies the given `sectors` of a change, counted from its first: those that reached the
    /// medium.
    pub fn apply(&mut self, change: &Change, sectors: Range<u64>) {
        let at = change.start.0 * Sector::BYTES;
        let from = (sectors.start * Sector::BYTES).min(change.bytes);
        let to = (sectors.end * Sector::BYTES).min(change.bytes);
        let data = match change.op {
            Op::Write => Some(&change.data[from as usize..to as usize]),
            Op::WriteZeroes | Op::Discard => None,
            Op::Read | Op::Flush => return,
        };
        self.write((at + from) as usize, (to - from) as usize, data);
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} pages changed, {:032x})", self.pages.len(), self.hash)
    }
}

/// A sector's contribution to the hash; 0 if it equals the base.
fn difference(sector: usize, base: &[u8], now: &[u8]) -> u128 {
    if base == now {
        return 0;
    }
    // Two lanes of multiply and rotate with different constants, seeded with the sector number.
    let mut lanes = [sector as u64 ^ 0x243f_6a88_85a3_08d3, sector as u64 ^ 0x1319_8a2e_0370_7344];
    for word in now.as_chunks::<8>().0 {
        let word = u64::from_le_bytes(*word);
        lanes[0] = (lanes[0] ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        lanes[1] = (lanes[1].rotate_left(27) ^ word).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    }
    let spread = |lane: u64| (lane ^ (lane >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    u128::from(spread(lanes[0])) << 64 | u128::from(spread(lanes[1]))
}

/// An [`Image`] as a device; every bio completes before `submit` returns.
pub struct ImageDevice {
    limits: Limits,
    image: Mutex<Image>,
}

impl ImageDevice {
    /// A disk with these contents.
    pub fn new(image: Image) -> Self {
        let limits = Limits {
            max_segments: u32::MAX,
            volatile_cache: true,
            ..Limits::new("image", image.len() as u64)
        };
        Self { limits, image: Mutex::new(image) }
    }

    /// The current contents.
    pub fn image(&self) -> Image {
        self.image.lock().clone()
    }

    fn run(&self, bio: &mut Bio) -> Result<(), IoErrorKind> {
        let (start, end) = self.limits.admit(bio)?;
        let mut at = start as usize;
        let mut image = self.image.lock();
        match bio.op {
            Op::Read => {
                for segment in &mut bio.segments {
                    let to = segment.as_mut_slice().expect("admitted");
                    image.read(at, to);
                    at += to.len();
                }
            }
            Op::Write => {
                for segment in &bio.segments {
                    let from = segment.as_slice();
                    image.write(at, from.len(), Some(from));
                    at += from.len();
                }
            }
            Op::Discard | Op::WriteZeroes => image.write(at, end as usize - at, None),
            Op::Flush => {}
        }
        Ok(())
    }
}

impl Device for ImageDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, mut bio: Bio) {
        let result = self.run(&mut bio);
        bio.end_as(&self.limits.name, result);
    }
}

impl fmt::Debug for ImageDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageDevice({:?})", self.image.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_the_contents_not_the_way_there() {
        let base: Arc<[u8]> = vec![7; 8 * PAGE].into();
        let mut a = Image::new(base.clone());
        let mut b = a.clone();
        a.write(512, 1024, Some(&[1; 1024]));
        a.write(1024, 512, None);
        b.write(1024, 512, None);
        assert_ne!(a.hash(), b.hash());
        b.write(512, 512, Some(&[1; 512]));
        assert_eq!((a.hash(), a.to_vec()), (b.hash(), b.to_vec()));
        b.write(512, 1024, Some(&[7; 1024]));
        assert_eq!((b.hash(), b.to_vec()), (0, base.to_vec()));
    }

    #[test]
    fn swapped_sectors_differ() {
        let base: Arc<[u8]> = vec![0; PAGE].into();
        let (mut a, mut b) = (Image::new(base.clone()), Image::new(base));
        a.write(0, 1024, Some(&[[1; 512], [2; 512]].concat()));
        b.write(0, 1024, Some(&[[2; 512], [1; 512]].concat()));
        assert_ne!(a.hash(), b.hash());
    }
}

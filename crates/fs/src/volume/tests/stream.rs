//! Streams of files that change meanwhile.

use super::ends::{Gate, created, image, opened, world};
use crate::{Chunk, Follow};

#[test]
fn a_stream_beside_a_truncation_has_no_bytes_of_another_file() {
    const LEN: usize = 12 << 20;
    let Some(image) = image(24, "-t ext4 -b 4096 -N 64") else { return };
    let sim = world();
    let rt = sim.rt();
    rt.block_on(async {
        let gate = Gate::new(&image);
        let (volume, _cache) = opened(rt, &gate).await;
        let (file, other) = (created(&volume, b"file").await, created(&volume, b"other").await);
        file.write(0, &vec![1; LEN]).await.unwrap();
        volume.sync().await.unwrap();
        let inode = volume.resolve(b"/file", Follow::No).await.unwrap();
        let mut stream = volume.stream(inode).await.unwrap();
        let mut bytes = 0;
        while let Some(chunk) = stream.next().await.unwrap() {
            if bytes == 0 {
                file.set_size(0).await.unwrap();
                volume.sync().await.unwrap();
                other.write(0, &vec![2; LEN]).await.unwrap();
                volume.sync().await.unwrap();
            }
            bytes += match chunk {
                Chunk::Data { offset, bytes: data } => {
                    assert_eq!(offset, bytes);
                    assert!(!data.contains(&2), "bytes of another file behind {offset}");
                    data.len() as u64
                }
                Chunk::Hole { offset, bytes: len } => {
                    assert_eq!(offset, bytes);
                    len
                }
            };
        }
        assert_eq!(bytes, LEN as u64, "as long as the file was");
    })
    .unwrap();
}

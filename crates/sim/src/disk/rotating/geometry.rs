//! Where sectors lie on the platters, and how long it takes to reach them.

use super::RotatingSpec;
use super::seek_time::{SeekCurve, SeekFloors};

/// Bytes in a sector.
const SECTOR: f64 = 512.0;

/// A drive's layout: zones of tracks, filled cylinder by cylinder. Each track's first sector is
/// skewed against the previous track's last one by the switching time.
#[derive(Debug)]
pub(super) struct Geometry {
    pub(super) revolution_ns: u64,
    heads: u64,
    head_skew_ns: u64,
    cylinder_skew_ns: u64,
    zones: Vec<Zone>,
    seek: SeekCurve,
    seek_floors: SeekFloors,
    head_switch_ns: u64,
    /// The platters' angle at time 0.
    phase_ns: u64,
}

#[derive(Debug)]
struct Zone {
    first_sector: u64,
    first_cylinder: u64,
    sectors_per_track: u64,
    /// Mean time per sector of a long transfer, including skew.
    streaming_sector_ns: f64,
}

/// A sector's position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SectorPosition {
    pub(super) cylinder: u64,
    pub(super) head: u64,
    /// When it passes under its head, relative to the start of a revolution.
    pub(super) angle_ns: u64,
    zone: usize,
    in_track: u64,
}

impl Geometry {
    /// `None` if no rising curve fits the seek times.
    pub(super) fn new(spec: &RotatingSpec) -> Option<Self> {
        let heads = u64::from(spec.heads);
        let revolution_ns = 60_000_000_000 / u64::from(spec.rpm);
        // Data sheets state disk-buffer rates for long transfers: a cylinder's bytes over its
        // revolutions and switches.
        let cylinder_ns =
            (heads * revolution_ns + (heads - 1) * spec.head_switch_ns + spec.seek_single_ns) as f64;
        let per_track = |bytes_s: f64| bytes_s * cylinder_ns / 1e9 / heads as f64 / SECTOR;
        let (outer, inner) = (per_track(spec.outer_bytes_s as f64), per_track(spec.inner_bytes_s as f64));
        let count = u64::from(spec.zones);
        let track = |zone: u64| {
            let inward = if count > 1 { zone as f64 / (count - 1) as f64 } else { 0.5 };
            (outer + (inner - outer) * inward).round().max(1.0) as u64
        };
        let one_cylinder_of_each: u64 = (0..count).map(track).sum::<u64>() * heads;
        let cylinders_each = (spec.capacity_bytes / 512).div_ceil(one_cylinder_of_each).max(1);
        let mut zones = Vec::new();
        let (mut sector, mut cylinder) = (0, 0);
        for zone in 0..count {
            let sectors_per_track = track(zone);
            zones.push(Zone {
                first_sector: sector,
                first_cylinder: cylinder,
                sectors_per_track,
                streaming_sector_ns: cylinder_ns / (sectors_per_track * heads) as f64,
            });
            sector += cylinders_each * heads * sectors_per_track;
            cylinder += cylinders_each;
        }
        let seek = SeekCurve::fit(spec.seek_single_ns, spec.seek_average_ns, spec.seek_full_ns, cylinder)?;
        Some(Self {
            revolution_ns,
            heads,
            head_skew_ns: spec.head_switch_ns,
            cylinder_skew_ns: spec.seek_single_ns,
            zones,
            seek_floors: SeekFloors::new(&seek),
            seek,
            head_switch_ns: spec.head_switch_ns,
            phase_ns: 0,
        })
    }

    pub(super) fn place(&self, sector: u64) -> SectorPosition {
        let zone = self.zones.partition_point(|zone| zone.first_sector <= sector) - 1;
        let z = &self.zones[zone];
        let offset = sector - z.first_sector;
        let (track, in_track) = (offset / z.sectors_per_track, offset % z.sectors_per_track);
        let (cylinder, head) = (z.first_cylinder + track / self.heads, track % self.heads);
        let skew = cylinder * ((self.heads - 1) * self.head_skew_ns + self.cylinder_skew_ns)
            + head * self.head_skew_ns;
        let angle_ns = (in_track * self.revolution_ns / z.sectors_per_track + skew) % self.revolution_ns;
        SectorPosition { cylinder, head, angle_ns, zone, in_track }
    }

    /// Time of the arm movement or head switch, until the head can read.
    pub(super) fn move_ns(&self, from: SectorPosition, to: SectorPosition) -> u64 {
        match from.cylinder.abs_diff(to.cylinder) {
            0 if from.head == to.head => 0,
            0 => self.head_switch_ns,
            distance => self.seek.ns(distance),
        }
    }

    /// Lower bound of [`Geometry::move_ns`] for a distance in cylinders; it increases with the
    /// distance.
    pub(super) fn moves_at_least_ns(&self, cylinders: u64) -> u64 {
        self.seek_floors.at_least_ns(cylinders)
    }

    /// Turns the platters by part of a revolution, in millionths, for all times.
    pub(super) fn turn(&mut self, millionths: u32) {
        self.phase_ns = self.revolution_ns * u64::from(millionths % 1_000_000) / 1_000_000;
    }

    /// The platters' angle at a time.
    pub(super) fn angle_at(&self, now_ns: u64) -> u64 {
        (now_ns + self.phase_ns) % self.revolution_ns
    }

    /// Rotational delay: with the platters at `angle_ns` now, the wait from `later_ns` later until
    /// `place` passes under its head.
    pub(super) fn wait_after(&self, angle_ns: u64, later_ns: u64, place: SectorPosition) -> u64 {
        // `later_ns` is at most a seek, a few revolutions; subtracting is cheaper than dividing.
        let mut angle = angle_ns + later_ns;
        while angle >= self.revolution_ns {
            angle -= self.revolution_ns;
        }
        if place.angle_ns >= angle {
            place.angle_ns - angle
        } else {
            place.angle_ns + self.revolution_ns - angle
        }
    }

    /// Rotational delay from `now_ns` until `place` passes under its head.
    pub(super) fn wait_ns(&self, now_ns: u64, place: SectorPosition) -> u64 {
        self.wait_after(self.angle_at(now_ns), 0, place)
    }

    /// Time to read or write from `place` on, including switches.
    pub(super) fn transfer_ns(&self, place: SectorPosition, sectors: u64) -> u64 {
        let per_track = self.zones[place.zone].sectors_per_track;
        let tracks = (place.in_track + sectors.max(1) - 1) / per_track;
        let cylinders = (place.head + tracks) / self.heads;
        sectors * self.revolution_ns / per_track
            + (tracks - cylinders) * self.head_skew_ns
            + cylinders * self.cylinder_skew_ns
    }

    /// Whether all of these sectors are on the track of `place`.
    pub(super) fn is_within_track(&self, place: SectorPosition, sectors: u64) -> bool {
        place.in_track + sectors <= self.zones[place.zone].sectors_per_track
    }

    /// Mean time per sector of sequential reading from `sector` on.
    pub(super) fn streaming_sector_ns(&self, sector: u64) -> f64 {
        let zone = self.zones.partition_point(|zone| zone.first_sector <= sector) - 1;
        self.zones[zone].streaming_sector_ns
    }

    /// Time to read `sectors` sequentially from `sector` on.
    pub(super) fn stream_ns(&self, sector: u64, sectors: u64) -> u64 {
        (sectors as f64 * self.streaming_sector_ns(sector)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::rotating::tests::constellation_es_2010;

    #[test]
    fn every_sector_has_a_place_of_its_own_and_neighbours_follow_without_a_lost_revolution() {
        let geometry = Geometry::new(&constellation_es_2010()).unwrap();
        let last = constellation_es_2010().capacity_bytes / 512 - 1;
        for start in [0, 1_000, last / 2, last - 100_000] {
            for sector in start..start + 20_000 {
                let (here, next) = (geometry.place(sector), geometry.place(sector + 1));
                assert!(
                    (here.cylinder, here.head, here.in_track) < (next.cylinder, next.head, next.in_track)
                );
                let end = here.angle_ns + geometry.transfer_ns(here, 1) + geometry.move_ns(here, next);
                let lost = geometry.wait_ns(end.saturating_sub(2), next);
                assert!(lost < 10_000, "sector {sector} loses {lost} ns");
            }
        }
    }
}

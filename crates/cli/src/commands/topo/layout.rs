//! Where shapes stand: rows by what they are, columns near what they are linked with.

use std::collections::BTreeMap;

use het_wire::topology::Role;

use super::picture::{Picture, Place};

/// Blank between neighbours in a row, in pixels as all lengths here.
const GAP: f64 = 10.0;
/// Blank between rows, where lines run and their labels stand.
const BAND: f64 = 58.0;
/// Of accelerators and peer switches: many lines.
const BAND_OF_PEERS: f64 = 92.0;
/// Left of everything: labels of lines.
pub const MARGIN: f64 = 178.0;
/// Above the first row: title and counts.
pub const HEAD: f64 = 74.0;
pub const LINE_HEIGHT: f64 = 13.0;
const PADDING: f64 = 9.0;
/// Below the last row of a node, for links between peers of that row.
const BOWS: f64 = 74.0;
/// From the node in detail to the boxes of others.
const ASIDE: f64 = 46.0;

/// A rectangle by its centre and size.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

impl Area {
    pub fn left(self) -> f64 {
        self.x - self.width / 2.0
    }

    pub fn right(self) -> f64 {
        self.x + self.width / 2.0
    }

    pub fn top(self) -> f64 {
        self.y - self.height / 2.0
    }

    pub fn bottom(self) -> f64 {
        self.y + self.height / 2.0
    }
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Layout {
    /// One a shape.
    pub areas: Vec<Area>,
    /// Around the node in detail.
    pub frame: Option<Area>,
    pub width: f64,
    pub height: f64,
}

/// The role whose row a shape stands in.
pub fn row(role: Role) -> Role {
    match role {
        Role::Tor => Role::Leaf,
        other => other,
    }
}

pub fn layout(picture: &Picture) -> Layout {
    let mut at = Placing {
        picture,
        areas: picture.shapes.iter().map(|shape| size(&shape.lines, shape.role)).collect(),
        placed: vec![false; picture.shapes.len()],
    };
    at.columns();
    at.rows();
    at.finish()
}

fn size(lines: &[String], role: Role) -> Area {
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let least = match role {
        Role::Accelerator => 96.0,
        Role::Nic => 40.0,
        _ => 56.0,
    };
    let width = (longest as f64 * 6.3 + 2.0 * PADDING).max(least);
    Area { width, height: lines.len() as f64 * LINE_HEIGHT + 2.0 * PADDING, ..Area::default() }
}

struct Placing<'a> {
    picture: &'a Picture,
    areas: Vec<Area>,
    placed: Vec<bool>,
}

impl Placing<'_> {
    fn of(&self, wanted: impl Fn(Role, Place) -> bool) -> Vec<usize> {
        let shapes = self.picture.shapes.iter().enumerate();
        shapes.filter(|(_, shape)| wanted(shape.role, shape.place)).map(|(id, _)| id).collect()
    }

    /// From the accelerators outwards, each row near what it is linked with.
    fn columns(&mut self) {
        let inside = |role| move |found, place| found == role && place == Place::Inside;
        let accelerators = self.of(inside(Role::Accelerator));
        let sockets = self.of(inside(Role::Socket));
        // Sockets take part where they have no accelerators: a row of their own comes first.
        let first = if accelerators.is_empty() { &sockets } else { &accelerators };
        self.settle(first);
        self.settle(&self.of(inside(Role::Pcie)));
        if !accelerators.is_empty() {
            self.settle(&sockets);
            self.settle(&self.of(inside(Role::Pcie)));
        }
        self.settle(&self.of(inside(Role::Switch)));
        self.settle(&self.of(inside(Role::Nic)));
        self.settle(&self.of(|role, place| role == Role::PeerSwitch && place != Place::Beside));
        let mut left = self.right() + ASIDE;
        for group in self.of(|_, place| place == Place::Beside) {
            self.areas[group].x = left + self.areas[group].width / 2.0;
            self.placed[group] = true;
            left += self.areas[group].width + 2.0 * GAP;
        }
        for roles in [[Role::Tor, Role::Leaf], [Role::Spine, Role::Spine], [Role::Core, Role::Core]]
        {
            self.settle(&self.of(|role, place| place == Place::Network && roles.contains(&role)));
        }
        self.settle(&self.of(|role, place| place == Place::Network && role == Role::Switch));
        let rest: Vec<usize> = (0..self.placed.len()).filter(|id| !self.placed[*id]).collect();
        self.settle(&rest);
    }

    fn right(&self) -> f64 {
        let placed = self.areas.iter().zip(&self.placed).filter(|(_, placed)| **placed);
        placed.map(|(area, _)| area.right()).fold(0.0, f64::max)
    }

    /// Puts the shapes of a row as near as they fit to the middle of what they are linked with.
    fn settle(&mut self, row: &[usize]) {
        let middle = self.right() / 2.0;
        let mut wishes: Vec<(f64, usize)> = row
            .iter()
            .enumerate()
            .map(|(index, &id)| {
                let wish = self.wish(id);
                // Without neighbours yet: in the order of the row, around the middle.
                (wish.unwrap_or(middle + index as f64 * 1e-3), id)
            })
            .collect();
        // Switches of the storage and business networks stand after the leaves.
        let is_tor = |id: usize| self.picture.shapes[id].role == Role::Tor;
        wishes.sort_by(|a, b| is_tor(a.1).cmp(&is_tor(b.1)).then(a.0.total_cmp(&b.0)));
        let widths: Vec<f64> = wishes.iter().map(|(_, id)| self.areas[*id].width + GAP).collect();
        let wanted: Vec<f64> = wishes.iter().map(|(wish, _)| *wish).collect();
        for ((_, id), x) in wishes.iter().zip(apart(&wanted, &widths)) {
            self.areas[*id].x = x;
            self.placed[*id] = true;
        }
    }

    fn wish(&self, id: usize) -> Option<f64> {
        let ends = self.picture.lines.iter().filter_map(|line| match (line.from, line.to) {
            (from, to) if from == id => Some(to),
            (from, to) if to == id => Some(from),
            _ => None,
        });
        let ends: Vec<usize> = ends.filter(|end| self.placed[*end]).collect();
        // Folded nodes count only where nothing else does.
        let near = |end: &usize| self.picture.shapes[*end].place != Place::Beside;
        let any_near = ends.iter().any(near);
        let ends: Vec<f64> = ends
            .into_iter()
            .filter(|end| !any_near || near(end))
            .map(|end| self.areas[end].x)
            .collect();
        (!ends.is_empty()).then(|| ends.iter().sum::<f64>() / ends.len() as f64)
    }

    fn rows(&mut self) {
        let mut heights: BTreeMap<Role, f64> = BTreeMap::new();
        for (shape, area) in self.picture.shapes.iter().zip(&self.areas) {
            if shape.place != Place::Beside {
                let height = heights.entry(row(shape.role)).or_default();
                *height = height.max(area.height);
            }
        }
        // Without a network the node's frame and its title come first.
        let network = heights.keys().any(|role| role.is_network());
        let mut y = if network { HEAD } else { HEAD + 22.0 };
        let mut middles: BTreeMap<Role, f64> = BTreeMap::new();
        let mut above = None;
        for (role, height) in heights {
            y += match (above, role) {
                (None, _) => 0.0,
                (_, Role::PeerSwitch) => BAND_OF_PEERS,
                // The node's frame and its title.
                (Some(above), inner) if Role::is_network(above) && !inner.is_network() => {
                    BAND + 22.0
                }
                _ => BAND,
            };
            middles.insert(role, y + height / 2.0);
            y += height;
            above = Some(role);
        }
        let first_inside =
            middles.iter().find(|(role, _)| !role.is_network()).map_or(HEAD, |(_, y)| *y);
        for (shape, area) in self.picture.shapes.iter().zip(&mut self.areas) {
            area.y = match shape.place {
                Place::Beside => first_inside - 18.0 + area.height / 2.0,
                _ => middles[&row(shape.role)],
            };
        }
    }

    /// Whether lines run below the last row of the node: peers that are joined without a switch.
    fn has_bows(&self) -> bool {
        let shapes = &self.picture.shapes;
        let is = |role| move |end: usize| shapes[end].role == role;
        let (peer, switch) = (is(Role::Accelerator), is(Role::PeerSwitch));
        let mut lines = self.picture.lines.iter();
        lines.any(|line| peer(line.from) && peer(line.to)) && !(0..shapes.len()).any(switch)
    }

    /// Moves everything right of the margin and measures.
    fn finish(mut self) -> Layout {
        let left = self.areas.iter().map(|area| area.left()).fold(f64::INFINITY, f64::min);
        for area in &mut self.areas {
            area.x += MARGIN - left;
        }
        let inside = self.of(|_, place| place == Place::Inside);
        let inside: Vec<Area> = inside.iter().map(|id| self.areas[*id]).collect();
        let title = self.picture.frame.chars().count() as f64 * 7.5;
        let (sides, above) = (14.0, 34.0);
        let below = if self.has_bows() { BOWS } else { sides };
        let frame = around(&inside).map(|all| {
            let width = (all.width + 2.0 * sides).max(title + 2.0 * sides);
            Area {
                x: all.left() - sides + width / 2.0,
                y: all.y + (below - above) / 2.0,
                width,
                height: all.height + above + below,
            }
        });
        let everything = self.areas.iter().copied().chain(frame);
        let everything: Vec<Area> = everything.collect();
        let all = around(&everything).unwrap_or_default();
        Layout { areas: self.areas, frame, width: all.right() + 24.0, height: all.bottom() + 46.0 }
    }
}

/// The least rectangle that holds all.
fn around(areas: &[Area]) -> Option<Area> {
    let least =
        |side: fn(Area) -> f64| areas.iter().map(|it| side(*it)).fold(f64::INFINITY, f64::min);
    let most =
        |side: fn(Area) -> f64| areas.iter().map(|it| side(*it)).fold(f64::NEG_INFINITY, f64::max);
    let (left, right) = (least(Area::left), most(Area::right));
    let (top, bottom) = (least(Area::top), most(Area::bottom));
    (!areas.is_empty()).then_some(Area {
        x: (left + right) / 2.0,
        y: (top + bottom) / 2.0,
        width: right - left,
        height: bottom - top,
    })
}

/// Positions in order, each at least half of both widths from the next, with the least sum of
/// squared distances to the wishes (pool adjacent violators).
fn apart(wishes: &[f64], widths: &[f64]) -> Vec<f64> {
    let mut offset = 0.0;
    let mut offsets = Vec::new();
    for (index, width) in widths.iter().enumerate() {
        if index > 0 {
            offset += (widths[index - 1] + width) / 2.0;
        }
        offsets.push(offset);
    }
    // Sum and number of the members of each pool.
    let mut pools: Vec<(f64, usize)> = Vec::new();
    for (wish, offset) in wishes.iter().zip(&offsets) {
        pools.push((wish - offset, 1));
        while let [.., before, last] = pools.as_slice() {
            if before.0 / before.1 as f64 <= last.0 / last.1 as f64 {
                break;
            }
            let merged = (before.0 + last.0, before.1 + last.1);
            pools.truncate(pools.len() - 2);
            pools.push(merged);
        }
    }
    let bases =
        pools.iter().flat_map(|(sum, count)| std::iter::repeat_n(sum / *count as f64, *count));
    bases.zip(&offsets).map(|(base, offset)| base + offset).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_keep_their_distance_and_their_middle() {
        let check = |wishes: &[f64], expected: &[f64]| {
            let widths = vec![10.0; wishes.len()];
            assert_eq!(apart(wishes, &widths), expected);
        };
        check(&[0.0, 20.0], &[0.0, 20.0]);
        check(&[5.0, 5.0], &[0.0, 10.0]);
        check(&[0.0, 0.0, 0.0, 50.0], &[-10.0, 0.0, 10.0, 50.0]);
    }
}

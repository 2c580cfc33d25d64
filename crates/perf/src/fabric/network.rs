//! Vertices and directed links.

/// A host, a device or a switch of a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VertexId(pub u32);

/// A directed link of a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// One direction of a cable, a bus or a port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    pub from: VertexId,
    pub to: VertexId,
    /// Infinite where the link limits nothing, as between a program and its own NIC.
    pub bytes_per_s: f64,
    pub latency_s: f64,
}

/// A directed graph with capacities. Vertices and links are numbered in the order they came.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Network {
    names: Vec<String>,
    links: Vec<Link>,
    leaving: Vec<Vec<LinkId>>,
}

impl Network {
    pub fn add_vertex(&mut self, name: impl Into<String>) -> VertexId {
        self.names.push(name.into());
        self.leaving.push(Vec::new());
        VertexId((self.names.len() - 1) as u32)
    }

    /// # Panics
    /// When an end is not of this network, or the capacity is not above zero.
    pub fn add_link(&mut self, link: Link) -> LinkId {
        assert!(link.bytes_per_s > 0.0, "a link carries something");
        assert!((link.to.0 as usize) < self.names.len(), "a link ends in its own network");
        let id = LinkId(self.links.len() as u32);
        self.leaving[link.from.0 as usize].push(id);
        self.links.push(link);
        id
    }

    /// Both directions of a cable: there, and back.
    pub fn add_cable(&mut self, link: Link) -> [LinkId; 2] {
        let back = Link { from: link.to, to: link.from, ..link };
        [self.add_link(link), self.add_link(back)]
    }

    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.0 as usize]
    }

    pub fn links(&self) -> &[Link] {
        &self.links
    }

    pub fn name(&self, id: VertexId) -> &str {
        &self.names[id.0 as usize]
    }

    pub fn vertices(&self) -> usize {
        self.names.len()
    }

    pub fn leaving(&self, vertex: VertexId) -> &[LinkId] {
        &self.leaving[vertex.0 as usize]
    }

    /// Whether each link begins where the one before ended.
    pub fn is_path(&self, path: &[LinkId]) -> bool {
        path.windows(2).all(|pair| self.link(pair[0]).to == self.link(pair[1]).from)
    }

    /// Seconds that a bit takes along a path, beside sending it.
    pub fn latency_s(&self, path: &[LinkId]) -> f64 {
        path.iter().map(|link| self.link(*link).latency_s).sum()
    }
}

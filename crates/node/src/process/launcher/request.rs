//! What a launcher and a shim are asked: bytes, and descriptors beside them. Whoever reads them
//! trusts no length in them.

use std::ffi::{CStr, CString};
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::process::sys::{HIERARCHIES_MAX, InheritedFds, Program, cpu_set, descriptor_limit};
use crate::process::variables::Environment;

/// The program of a rank, as an engine knows it.
#[derive(Debug)]
pub(crate) struct RankProgram {
    /// Absolute, or relative to `cwd`.
    pub(crate) path: CString,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Environment,
    pub(crate) cwd: CString,
    pub(crate) rank: u32,
    /// Core ids; empty leaves the process unpinned.
    pub(crate) cores: Vec<u32>,
    pub(crate) inherited: InheritedFds,
}

/// Descriptors of a rank.
#[derive(Debug)]
pub(crate) struct RankDescriptors<'a> {
    pub(crate) stdin: BorrowedFd<'a>,
    pub(crate) stdout: BorrowedFd<'a>,
    pub(crate) stderr: BorrowedFd<'a>,
    /// `cgroup.procs` files to which the process writes `0` to enter its cgroups.
    pub(crate) cgroup_procs: &'a [OwnedFd],
}

impl<'a> RankDescriptors<'a> {
    /// In the order in which they are sent.
    pub(super) fn all(&self) -> impl Iterator<Item = BorrowedFd<'a>> + '_ {
        use std::os::fd::AsFd;
        let procs = self.cgroup_procs.iter().take(HIERARCHIES_MAX).map(AsFd::as_fd);
        [self.stdin, self.stdout, self.stderr].into_iter().chain(procs)
    }
}

/// A gang is to get a shim. Descriptors: where there is no shim yet, its end of the connection
/// through which it is told its ranks; the file of its record; and perhaps one that it holds as
/// long as it has the gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GangRequest {
    /// Where its slots are in the file.
    pub(super) slots_at: u64,
    pub(super) ranks: u32,
}

/// The ranks of its gang are needed no more: the shim collects them, and waits for another
/// gang.
pub(super) const RELEASE: &[u8] = b"release";

/// The descriptor beside it is held for the gang from now on.
pub(super) const HOLD: &[u8] = b"hold";

pub(super) const GANG_BYTES: usize = 12;

impl GangRequest {
    pub(super) fn encode(self) -> [u8; GANG_BYTES] {
        let mut bytes = [0; GANG_BYTES];
        bytes[..8].copy_from_slice(&self.slots_at.to_le_bytes());
        bytes[8..].copy_from_slice(&self.ranks.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let request = Self { slots_at: reader.u64()?, ranks: reader.u32()? };
        reader.0.is_empty().then_some(request)
    }
}

/// Descriptors before those of cgroups in a request for a rank.
pub(super) const STREAMS: usize = 3;
pub(super) const RANK_DESCRIPTORS_MAX: usize = STREAMS + HIERARCHIES_MAX;
/// Cores that a rank may name, which bounds what a length in a request can ask for.
const CORES_MAX: u32 = 4_096;

/// The bytes of a request for a rank.
pub(super) fn encode_rank(program: &RankProgram) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4_096);
    bytes.push(u8::from(program.inherited == InheritedFds::Closed));
    let (soft, hard) = descriptor_limit().unwrap_or((0, 0));
    bytes.extend(soft.to_le_bytes());
    bytes.extend(hard.to_le_bytes());
    let env = program.env.pairs().count();
    for number in [program.rank, program.argv.len() as u32, env as u32, program.cores.len() as u32]
    {
        bytes.extend(number.to_le_bytes());
    }
    program.cores.iter().for_each(|core| bytes.extend(core.to_le_bytes()));
    let argv = program.argv.iter().map(CString::as_c_str);
    let texts = [program.path.as_c_str(), &program.cwd].into_iter().chain(argv);
    for text in texts.chain(program.env.pairs()) {
        bytes.extend_from_slice(text.to_bytes_with_nul());
    }
    bytes
}

/// The program in a request; `None` where the bytes are none.
pub(super) fn decode_rank(bytes: &[u8]) -> Option<(Program<'_>, InheritedFds)> {
    let mut reader = Reader(bytes);
    let inherited = match reader.u8()? {
        0 => InheritedFds::Kept,
        _ => InheritedFds::Closed,
    };
    let limits = (reader.u64()?, reader.u64()?);
    let (rank, argv, env, cores) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
    if cores > CORES_MAX {
        return None;
    }
    let cores = (0..cores).map(|_| reader.u32()).collect::<Option<Vec<u32>>>()?;
    let (path, cwd) = (reader.text()?, reader.text()?);
    // A number that is too high runs out of bytes: nothing is reserved for it.
    let mut texts = |count: u32| {
        let mut found = Vec::new();
        for _ in 0..count {
            found.push(reader.text()?);
        }
        Some(found)
    };
    let (argv, env) = (texts(argv)?, texts(env)?);
    let descriptors = (limits.1 > 0).then_some(limits);
    let cores = cpu_set(&cores);
    let program = Program { path, cwd, argv, env, rank, cores, descriptors };
    reader.0.is_empty().then_some((program, inherited))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a CStr> {
        let text = CStr::from_bytes_until_nul(self.0).ok()?;
        self.0 = &self.0[text.to_bytes_with_nul().len()..];
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::process::variables::{Inherited, Variables};

    fn request() -> Vec<u8> {
        let inherited = Arc::new(Inherited::parse(b"A=1\0\0B=\0"));
        let mut variables = Variables::new();
        variables.set("RANK", 2);
        let env = Environment::new(&inherited, variables).expect("no byte is zero");
        encode_rank(&RankProgram {
            path: c"/bin/sh".to_owned(),
            argv: vec![c"sh".to_owned(), c"".to_owned()],
            env,
            cwd: c"/tmp".to_owned(),
            rank: 2,
            cores: vec![0],
            inherited: InheritedFds::Closed,
        })
    }

    #[test]
    fn a_program_arrives_as_it_was_sent() {
        let bytes = request();
        let (program, inherited) = decode_rank(&bytes).expect("it is whole");
        assert_eq!((program.path, program.cwd, program.rank), (c"/bin/sh", c"/tmp", 2));
        assert_eq!((program.argv, program.env), (vec![c"sh", c""], vec![c"A=1", c"B=", c"RANK=2"]));
        assert!(program.cores.is_some() && inherited == InheritedFds::Closed);
    }

    #[test]
    fn what_is_cut_or_too_long_is_refused() {
        let mut bytes = request();
        for length in 0..bytes.len() {
            assert!(decode_rank(&bytes[..length]).is_none(), "{length} bytes");
        }
        bytes.push(0);
        assert!(decode_rank(&bytes).is_none());
        let mut huge = request();
        huge[21..33].fill(0xff);
        assert!(decode_rank(&huge).is_none(), "counts beyond what is there");
    }
}

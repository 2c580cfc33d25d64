//! Which devices the processes of a cgroup of version 2 may open: a program of a few instructions
//! (bpf(2), `BPF_PROG_TYPE_CGROUP_DEVICE`).

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use serde::{Deserialize, Serialize};

/// A character device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

// Numbers of linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_DETACH: libc::c_long = 9;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const PROG_QUERY: libc::c_long = 16;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Programs of the cgroups around it hold as well.
const ALLOW_MULTI: u32 = 2;
/// Kind of device, in the lower half of the first field of the context.
const CHARACTER_DEVICE: i32 = 2;
const KIND_BITS: i32 = 0xffff;
/// Answers of the program.
const ALLOW: i32 = 1;
const DENY: i32 = 0;
const LICENCE: &std::ffi::CStr = c"Apache-2.0";

/// `struct bpf_insn`; the registers share a byte, the target in its lower half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Fields of `union bpf_attr` for loading, as far as they are needed.
#[repr(C)]
struct LoadArguments {
    program_type: u32,
    instructions: u32,
    program: u64,
    licence: u64,
    log: [u64; 2],
}

/// Fields of `union bpf_attr` for attaching.
#[repr(C)]
struct AttachArguments {
    cgroup: RawFd,
    program: RawFd,
    kind: u32,
    flags: u32,
}

/// The kernel attaches no more to one cgroup (`BPF_CGROUP_MAX_PROGS`).
const ATTACHED_MAX: usize = 64;

/// Fields of `union bpf_attr` for asking what is attached.
#[repr(C)]
struct QueryArguments {
    cgroup: RawFd,
    kind: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
}

/// Loads a program that denies these devices and allows all others.
///
/// # Errors
/// When the kernel has no such programs, or this process may not load any.
pub(crate) fn load_device_filter(
    denied: impl Iterator<Item = DeviceNumber>,
) -> io::Result<OwnedFd> {
    let program = instructions(denied);
    let arguments = LoadArguments {
        program_type: TYPE_CGROUP_DEVICE,
        instructions: program.len() as u32,
        program: program.as_ptr() as u64,
        licence: LICENCE.as_ptr() as u64,
        log: [0; 2],
    };
    let fd = bpf(PROG_LOAD, &arguments)?;
    // SAFETY: the call returned a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// # Errors
/// When this process may not decide about the cgroup.
pub(crate) fn attach_device_filter(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
) -> io::Result<()> {
    bpf(PROG_ATTACH, &attach_arguments(cgroup, program, ALLOW_MULTI)).map(drop)
}

/// Programs that were attached to this very cgroup, by whomever.
///
/// # Errors
/// When this process may not know.
pub(crate) fn attached_device_filters(cgroup: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut ids = [0_u32; ATTACHED_MAX];
    let mut arguments = QueryArguments {
        cgroup: cgroup.as_raw_fd(),
        kind: ATTACH_CGROUP_DEVICE,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: ATTACHED_MAX as u32,
    };
    bpf_query(&mut arguments)?;
    let attached = ids.iter().take(arguments.count as usize);
    let opened = attached.map(|&id| {
        let fd = bpf(PROG_GET_FD_BY_ID, &[id, 0, 0])?;
        // SAFETY: the call returned a new descriptor, which nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    });
    opened.collect()
}

/// # Errors
/// When it was not attached there.
pub(crate) fn detach_device_filter(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
) -> io::Result<()> {
    bpf(PROG_DETACH, &attach_arguments(cgroup, program, 0)).map(drop)
}

fn attach_arguments(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    flags: u32,
) -> AttachArguments {
    AttachArguments {
        cgroup: cgroup.as_raw_fd(),
        program: program.as_raw_fd(),
        kind: ATTACH_CGROUP_DEVICE,
        flags,
    }
}

fn bpf<T>(command: libc::c_long, arguments: &T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads as many bytes as the arguments have, and what their addresses lead
    // to lives until it returns.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(arguments), size_of_val(arguments))
    };
    RawFd::try_from(result).ok().filter(|&fd| fd >= 0).ok_or_else(io::Error::last_os_error)
}

/// The kernel writes how many there are, and their ids.
fn bpf_query(arguments: &mut QueryArguments) -> io::Result<()> {
    // SAFETY: the arguments are as long as they are said to be, and have room for as many ids as
    // they say; both live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_QUERY,
            std::ptr::from_mut(arguments),
            size_of::<QueryArguments>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The context is `{ access and kind: u32, major: u32, minor: u32 }`. Codes of instructions: 0x61
/// loads a word from the context, 0x57 masks, 0xb7 sets, 0x15 and 0x55 jump, 0x95 ends.
fn instructions(denied: impl Iterator<Item = DeviceNumber>) -> Vec<Instruction> {
    let one =
        |code, registers, offset, immediate| Instruction { code, registers, offset, immediate };
    let load = |target: u8, at| one(0x61, 0x10 | target, at, 0);
    let jump_if = |register, value, over| one(0x15, register, over, value);
    let jump_unless = |register, value, over| one(0x55, register, over, value);
    let answer = |value| [one(0xb7, 0, 0, value), one(0x95, 0, 0, 0)];
    let (kind, major_register, minor_register) = (2, 3, 4);
    let mut program = vec![load(kind, 0), load(major_register, 4), load(minor_register, 8)];
    program.push(one(0x57, kind, 0, KIND_BITS));
    // Jumps are over so many instructions; an answer has two.
    program.push(jump_if(kind, CHARACTER_DEVICE, 2));
    program.extend(answer(ALLOW));
    for DeviceNumber { major, minor } in denied {
        program.push(jump_unless(major_register, major as i32, 3));
        program.push(jump_unless(minor_register, minor as i32, 2));
        program.extend(answer(DENY));
    }
    program.extend(answer(ALLOW));
    program
}

//! Frames between a program and its workers, and from one worker to another: a length, a version,
//! a kind, and fields in little endian. Whatever is read is checked against limits before anything
//! is taken for it.

use thiserror::Error;

use crate::machine::Interval;
use crate::{Access, Accesses, HandleId, Mode, Nanos, TaskId, TransferId};

/// Of every frame. Another one ends the connection.
pub const VERSION: u8 = 3;

/// Most bytes of content in a frame: whatever is urgent waits for one.
pub const CHUNK: usize = 1 << 16;

/// Most bytes of a frame after its length: there are many kernels and their names.
pub const FRAME_MAX: usize = 1 << 20;

/// Most bytes of what somebody says first who has shown nothing yet, over a channel.
pub const GREETING_MAX: usize = 64;

/// Bytes before a frame: its length.
pub const LENGTH: usize = 4;

/// Most bytes of a name of a device, class or kernel.
const NAME_MAX: usize = 256;

/// Most bytes of a reason; the rest is cut off.
const REASON_MAX: usize = 4_096;

/// Most kernels of a program or worker.
const KERNELS_MAX: usize = 2_048;

/// Handles beyond this row are refused: tables are by row.
const HANDLE_ROWS_MAX: u32 = 1 << 24;

pub const TOKEN: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes: 2 to {FRAME_MAX} are allowed")]
    Length(usize),
    #[error("a frame of version {0}, and not {VERSION}")]
    Version(u8),
    #[error("a frame of kind {0}, which does not exist")]
    Kind(u8),
    #[error("a frame that ends in the middle of a field")]
    Short,
    #[error("a frame with {0} bytes after its last field")]
    Long(usize),
    #[error("a frame with a {0} that is none")]
    Field(&'static str),
}

/// What a worker says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Zeros over a Unix socket.
    pub token: [u8; TOKEN],
    pub device: String,
    pub class: String,
    /// Bytes.
    pub capacity: u64,
    pub kernels: Vec<String>,
    /// Where other workers may come to: a file in the directory of the program's socket, or a port.
    pub door: Option<String>,
}

/// A direct connection from one worker to another, as the program numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// A part of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    pub transfer: TransferId,
    /// Of the whole content.
    pub total: u64,
    pub offset: u64,
    pub bytes: &'a [u8],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteLaunch {
    pub task: TaskId,
    /// Row of the program's kernels.
    pub kernel: u16,
    pub parameter: u64,
    pub sequence: u64,
    /// See [`crate::Launch`].
    pub expected: Nanos,
    pub accesses: Accesses,
}

/// The whole content of a handle, of so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCopy {
    pub transfer: TransferId,
    pub handle: HandleId,
    pub bytes: u64,
}

/// From the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order<'a> {
    /// The program's kernels in the order of their ids, and after how many milliseconds without a
    /// frame a worker is given up.
    Welcome {
        silence_ms: u64,
        kernels: Vec<String>,
    },
    Launch(RemoteLaunch),
    Store(HandleId, Chunk<'a>),
    Fetch(RemoteCopy),
    Drop(HandleId),
    /// There is nothing more to do, now or later.
    End,
    /// Another worker is to come with a channel, and shows this.
    Expect(ChannelId, [u8; TOKEN]),
    /// What is to come over it.
    Await(ChannelId, RemoteCopy),
    /// Go to another worker, show it this, and open a channel to it.
    Open(ChannelId, String, [u8; TOKEN]),
    /// What is to go over it.
    Send(ChannelId, RemoteCopy),
    /// It is of no more use.
    Close(ChannelId),
}

/// From a worker. Times are its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report<'a> {
    Hello(Hello),
    Ended {
        task: TaskId,
        ran: Interval,
    },
    Failed {
        task: TaskId,
        ran: Interval,
        reason: String,
    },
    Stored {
        transfer: TransferId,
    },
    CopyFailed {
        transfer: TransferId,
        reason: String,
    },
    /// To the program, or over a channel.
    Content(Chunk<'a>),
    /// It has nothing to say, and is there.
    Alive,
    /// The first thing over a channel.
    Greeting {
        token: [u8; TOKEN],
        channel: ChannelId,
    },
    /// From the second end of a channel to the first, and from that to the program.
    Opened(ChannelId),
    /// From either end. From the second: nothing that is still to come over it is stored.
    Closed {
        channel: ChannelId,
        reason: String,
    },
    /// Some of what is awaited over it came.
    Progress(ChannelId),
}

impl Order<'_> {
    /// Appends the frame.
    pub fn write(&self, into: &mut Vec<u8>) {
        let frame = Frame::begin(into);
        match self {
            Self::Welcome { silence_ms, kernels } => {
                frame.kind(0).u64(*silence_ms).names(kernels);
            }
            Self::Launch(launch) => {
                let frame = frame.kind(1).id(launch.task.row, launch.task.generation);
                let frame = frame.u16(launch.kernel).u64(launch.parameter).u64(launch.sequence);
                let frame = frame.u64(launch.expected);
                let mut frame = frame.u16(launch.accesses.len() as u16);
                for Access { handle, mode } in &launch.accesses {
                    frame = frame.handle(*handle).u8(mode_code(*mode));
                }
            }
            Self::Store(handle, chunk) => {
                frame.kind(2).handle(*handle).chunk(chunk);
            }
            Self::Fetch(copy) => {
                frame.kind(3).copy(copy);
            }
            Self::Drop(handle) => {
                frame.kind(4).handle(*handle);
            }
            Self::End => {
                frame.kind(5);
            }
            Self::Expect(channel, token) => {
                frame.kind(6).u32(channel.0).bytes(token);
            }
            Self::Await(channel, copy) => {
                frame.kind(7).u32(channel.0).copy(copy);
            }
            Self::Open(channel, place, token) => {
                frame.kind(8).u32(channel.0).name(place).bytes(token);
            }
            Self::Send(channel, copy) => {
                frame.kind(9).u32(channel.0).copy(copy);
            }
            Self::Close(channel) => {
                frame.kind(10).u32(channel.0);
            }
        }
    }
}

impl<'a> Order<'a> {
    /// # Errors
    /// What is wrong with the frame, whose length is already gone.
    pub fn read(frame: &'a [u8]) -> Result<Self, FrameError> {
        let (kind, mut fields) = Fields::begin(frame)?;
        let order = match kind {
            0 => Self::Welcome { silence_ms: fields.u64()?, kernels: fields.names()? },
            1 => {
                let task = fields.task()?;
                let (kernel, parameter, sequence) = (fields.u16()?, fields.u64()?, fields.u64()?);
                let expected = fields.u64()?;
                let mut accesses = Accesses::new();
                for _ in 0..fields.u16()? {
                    accesses.push(Access { handle: fields.handle()?, mode: fields.mode()? });
                }
                Self::Launch(RemoteLaunch { task, kernel, parameter, sequence, expected, accesses })
            }
            2 => Self::Store(fields.handle()?, fields.chunk()?),
            3 => Self::Fetch(fields.copy()?),
            4 => Self::Drop(fields.handle()?),
            5 => Self::End,
            6 => Self::Expect(fields.channel()?, fields.array()?),
            7 => Self::Await(fields.channel()?, fields.copy()?),
            8 => Self::Open(fields.channel()?, fields.name()?, fields.array()?),
            9 => Self::Send(fields.channel()?, fields.copy()?),
            10 => Self::Close(fields.channel()?),
            other => return Err(FrameError::Kind(other)),
        };
        fields.end().map(|()| order)
    }
}

impl Report<'_> {
    /// Appends the frame.
    pub fn write(&self, into: &mut Vec<u8>) {
        let frame = Frame::begin(into);
        match self {
            Self::Hello(Hello { token, device, class, capacity, kernels, door }) => {
                let frame = frame.kind(0).bytes(token).name(device).name(class);
                let frame = frame.u64(*capacity).names(kernels);
                match door {
                    Some(place) => frame.u8(1).name(place),
                    None => frame.u8(0),
                };
            }
            Self::Ended { task, ran } => {
                frame.kind(1).id(task.row, task.generation).interval(*ran);
            }
            Self::Failed { task, ran, reason } => {
                let frame = frame.kind(2).id(task.row, task.generation);
                frame.interval(*ran).reason(reason);
            }
            Self::Stored { transfer } => {
                frame.kind(3).transfer(*transfer);
            }
            Self::CopyFailed { transfer, reason } => {
                frame.kind(4).transfer(*transfer).reason(reason);
            }
            Self::Content(chunk) => {
                frame.kind(5).chunk(chunk);
            }
            Self::Alive => {
                frame.kind(6);
            }
            Self::Greeting { token, channel } => {
                frame.kind(7).bytes(token).u32(channel.0);
            }
            Self::Opened(channel) => {
                frame.kind(8).u32(channel.0);
            }
            Self::Closed { channel, reason } => {
                frame.kind(9).u32(channel.0).reason(reason);
            }
            Self::Progress(channel) => {
                frame.kind(10).u32(channel.0);
            }
        }
    }
}

impl<'a> Report<'a> {
    /// # Errors
    /// What is wrong with the frame, whose length is already gone.
    pub fn read(frame: &'a [u8]) -> Result<Self, FrameError> {
        let (kind, mut fields) = Fields::begin(frame)?;
        let report = match kind {
            0 => Self::Hello(Hello {
                token: fields.array()?,
                device: fields.name()?,
                class: fields.name()?,
                capacity: fields.u64()?,
                kernels: fields.names()?,
                door: fields.door()?,
            }),
            1 => Self::Ended { task: fields.task()?, ran: fields.interval()? },
            2 => Self::Failed {
                task: fields.task()?,
                ran: fields.interval()?,
                reason: fields.text(REASON_MAX, "reason")?,
            },
            3 => Self::Stored { transfer: fields.transfer()? },
            4 => Self::CopyFailed {
                transfer: fields.transfer()?,
                reason: fields.text(REASON_MAX, "reason")?,
            },
            5 => Self::Content(fields.chunk()?),
            6 => Self::Alive,
            7 => Self::Greeting { token: fields.array()?, channel: fields.channel()? },
            8 => Self::Opened(fields.channel()?),
            9 => Self::Closed {
                channel: fields.channel()?,
                reason: fields.text(REASON_MAX, "reason")?,
            },
            10 => Self::Progress(fields.channel()?),
            other => return Err(FrameError::Kind(other)),
        };
        fields.end().map(|()| report)
    }
}

/// The length of a frame.
///
/// # Errors
/// One that no frame has.
pub fn length(bytes: [u8; LENGTH]) -> Result<usize, FrameError> {
    let length = u32::from_le_bytes(bytes) as usize;
    match length {
        2..=FRAME_MAX => Ok(length),
        _ => Err(FrameError::Length(length)),
    }
}

fn mode_code(mode: Mode) -> u8 {
    match mode {
        Mode::Read => 0,
        Mode::Write => 1,
        Mode::ReadWrite => 2,
    }
}

/// A frame that is being written; its length is set when it is dropped.
struct Frame<'a> {
    into: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Frame<'a> {
    fn begin(into: &'a mut Vec<u8>) -> Self {
        let start = into.len();
        into.extend([0; LENGTH]);
        into.push(VERSION);
        Self { into, start }
    }

    fn kind(self, kind: u8) -> Self {
        self.u8(kind)
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        self.into.extend_from_slice(bytes);
        self
    }

    fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    fn id(self, row: u32, generation: u32) -> Self {
        self.u32(row).u32(generation)
    }

    fn handle(self, handle: HandleId) -> Self {
        self.id(handle.row, handle.generation)
    }

    fn transfer(self, transfer: TransferId) -> Self {
        self.id(transfer.row, transfer.generation)
    }

    fn copy(self, RemoteCopy { transfer, handle, bytes }: &RemoteCopy) -> Self {
        self.transfer(*transfer).handle(*handle).u64(*bytes)
    }

    fn interval(self, interval: Interval) -> Self {
        self.u64(interval.start).u64(interval.end)
    }

    /// A text of at most so many bytes, cut off at the last character that fits.
    fn text(self, text: &str, most: usize) -> Self {
        let cut = text.floor_char_boundary(most);
        self.u32(cut as u32).bytes(&text.as_bytes()[..cut])
    }

    fn name(self, name: &str) -> Self {
        self.text(name, NAME_MAX)
    }

    fn reason(self, reason: &str) -> Self {
        self.text(reason, REASON_MAX)
    }

    fn names(self, names: &[String]) -> Self {
        let frame = self.u32(names.len() as u32);
        names.iter().fold(frame, |frame, name| frame.name(name))
    }

    fn chunk(self, Chunk { transfer, total, offset, bytes }: &Chunk<'_>) -> Self {
        let frame = self.transfer(*transfer).u64(*total).u64(*offset);
        frame.u32(bytes.len() as u32).bytes(bytes)
    }
}

impl Drop for Frame<'_> {
    fn drop(&mut self) {
        let length = (self.into.len() - self.start - LENGTH) as u32;
        self.into[self.start..self.start + LENGTH].copy_from_slice(&length.to_le_bytes());
    }
}

/// What is left of a frame that is being read.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn begin(frame: &'a [u8]) -> Result<(u8, Self), FrameError> {
        let mut fields = Self(frame);
        match fields.u8()? {
            VERSION => Ok((fields.u8()?, fields)),
            other => Err(FrameError::Version(other)),
        }
    }

    fn end(self) -> Result<(), FrameError> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(FrameError::Long(left)),
        }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (taken, left) = self.0.split_at_checked(count).ok_or(FrameError::Short)?;
        self.0 = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (taken, left) = self.0.split_first_chunk().ok_or(FrameError::Short)?;
        self.0 = left;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn task(&mut self) -> Result<TaskId, FrameError> {
        Ok(TaskId { row: self.u32()?, generation: self.u32()? })
    }

    fn transfer(&mut self) -> Result<TransferId, FrameError> {
        Ok(TransferId { row: self.u32()?, generation: self.u32()? })
    }

    fn handle(&mut self) -> Result<HandleId, FrameError> {
        let handle = HandleId { row: self.u32()?, generation: self.u32()? };
        match handle.row < HANDLE_ROWS_MAX {
            true => Ok(handle),
            false => Err(FrameError::Field("handle")),
        }
    }

    fn copy(&mut self) -> Result<RemoteCopy, FrameError> {
        let (transfer, handle) = (self.transfer()?, self.handle()?);
        Ok(RemoteCopy { transfer, handle, bytes: self.u64()? })
    }

    fn channel(&mut self) -> Result<ChannelId, FrameError> {
        Ok(ChannelId(self.u32()?))
    }

    fn door(&mut self) -> Result<Option<String>, FrameError> {
        match self.u8()? {
            0 => Ok(None),
            1 => Ok(Some(self.name()?)),
            _ => Err(FrameError::Field("door")),
        }
    }

    fn mode(&mut self) -> Result<Mode, FrameError> {
        match self.u8()? {
            0 => Ok(Mode::Read),
            1 => Ok(Mode::Write),
            2 => Ok(Mode::ReadWrite),
            _ => Err(FrameError::Field("mode")),
        }
    }

    fn interval(&mut self) -> Result<Interval, FrameError> {
        let interval = Interval { start: self.u64()?, end: self.u64()? };
        match interval.start <= interval.end {
            true => Ok(interval),
            false => Err(FrameError::Field("time")),
        }
    }

    fn text(&mut self, most: usize, what: &'static str) -> Result<String, FrameError> {
        let length = self.u32()? as usize;
        if length > most {
            return Err(FrameError::Field(what));
        }
        let text = std::str::from_utf8(self.bytes(length)?);
        text.map(str::to_owned).map_err(|_| FrameError::Field(what))
    }

    fn name(&mut self) -> Result<String, FrameError> {
        self.text(NAME_MAX, "name")
    }

    fn names(&mut self) -> Result<Vec<String>, FrameError> {
        let count = self.u32()? as usize;
        if count > KERNELS_MAX {
            return Err(FrameError::Field("number of kernels"));
        }
        (0..count).map(|_| self.name()).collect()
    }

    fn chunk(&mut self) -> Result<Chunk<'a>, FrameError> {
        let (transfer, total, offset) = (self.transfer()?, self.u64()?, self.u64()?);
        let length = self.u32()? as usize;
        if length > CHUNK {
            return Err(FrameError::Field("length of a chunk"));
        }
        Ok(Chunk { transfer, total, offset, bytes: self.bytes(length)? })
    }
}

/// The parts of a content; an empty one has one.
pub fn chunks(transfer: TransferId, content: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    let total = content.len() as u64;
    (0..content.len().max(1)).step_by(CHUNK).map(move |offset| {
        let bytes = &content[offset..content.len().min(offset + CHUNK)];
        Chunk { transfer, total, offset: offset as u64, bytes }
    })
}

/// A content that comes in parts, in order, of as many bytes as were expected.
#[derive(Debug)]
pub struct Assembly {
    expected: u64,
    received: Vec<u8>,
}

impl Assembly {
    pub fn new(expected: u64) -> Self {
        Self { expected, received: Vec::new() }
    }

    /// Takes a part; the whole content once it is there.
    ///
    /// # Errors
    /// In words, a part that does not follow the last one, or of another content.
    pub fn add(&mut self, chunk: &Chunk<'_>) -> Result<Option<Vec<u8>>, String> {
        let Chunk { total, offset, bytes, .. } = *chunk;
        let before = self.received.len() as u64;
        if total != self.expected {
            return Err(format!("a content of {total} bytes, where {} are", self.expected));
        }
        if offset != before || bytes.len() as u64 > total - before {
            return Err(format!("{} bytes at {offset}, after {before} of {total}", bytes.len()));
        }
        if bytes.is_empty() && total > 0 {
            return Err("a part without bytes".to_owned());
        }
        self.received.extend_from_slice(bytes);
        let is_whole = self.received.len() as u64 == total;
        Ok(is_whole.then(|| std::mem::take(&mut self.received)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TASK: TaskId = TaskId { row: 7, generation: 3 };
    const TRANSFER: TransferId = TransferId { row: 9, generation: 1 };
    const HANDLE: HandleId = HandleId { row: 5, generation: 2 };
    const CHUNK_OF_3: Chunk<'_> =
        Chunk { transfer: TRANSFER, total: 8, offset: 5, bytes: &[1, 2, 3] };

    const COPY: RemoteCopy = RemoteCopy { transfer: TRANSFER, handle: HANDLE, bytes: 8 };
    const CHANNEL: ChannelId = ChannelId(u32::MAX);

    fn place() -> String {
        "10.0.0.7:4100".to_owned()
    }

    fn orders() -> Vec<Order<'static>> {
        let accesses = [Mode::Read, Mode::Write, Mode::ReadWrite];
        let accesses = accesses.map(|mode| Access { handle: HANDLE, mode });
        let launch = RemoteLaunch {
            task: TASK,
            kernel: 2,
            parameter: u64::MAX,
            sequence: 17,
            expected: 5_000,
            accesses: accesses.into_iter().collect(),
        };
        vec![
            Order::Welcome { silence_ms: 9, kernels: vec!["a".to_owned(), String::new()] },
            Order::Launch(launch),
            Order::Store(HANDLE, CHUNK_OF_3),
            Order::Fetch(COPY),
            Order::Drop(HANDLE),
            Order::End,
            Order::Expect(CHANNEL, [7; TOKEN]),
            Order::Await(CHANNEL, COPY),
            Order::Open(CHANNEL, place(), [8; TOKEN]),
            Order::Send(CHANNEL, COPY),
            Order::Close(CHANNEL),
        ]
    }

    fn reports() -> Vec<Report<'static>> {
        let ran = Interval { start: 4, end: 5 };
        let text = || "größer".to_owned();
        let hello = Hello {
            token: [6; TOKEN],
            device: text(),
            class: text(),
            capacity: 1 << 40,
            kernels: vec![text(), text()],
            door: None,
        };
        vec![
            Report::Hello(hello.clone()),
            Report::Hello(Hello { door: Some(place()), ..hello }),
            Report::Ended { task: TASK, ran },
            Report::Failed { task: TASK, ran, reason: text() },
            Report::Stored { transfer: TRANSFER },
            Report::CopyFailed { transfer: TRANSFER, reason: text() },
            Report::Content(CHUNK_OF_3),
            Report::Alive,
            Report::Greeting { token: [9; TOKEN], channel: CHANNEL },
            Report::Opened(CHANNEL),
            Report::Closed { channel: CHANNEL, reason: text() },
            Report::Progress(CHANNEL),
        ]
    }

    fn frame(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes);
        let (head, body) = bytes.split_first_chunk().expect("a length");
        assert_eq!(length(*head), Ok(body.len()));
        body.to_vec()
    }

    #[test]
    fn what_is_written_is_read_again_and_no_part_of_it_is() {
        for order in orders() {
            let frame = frame(|into| order.write(into));
            assert_eq!(Order::read(&frame).as_ref(), Ok(&order));
            for cut in 0..frame.len() {
                assert!(Order::read(&frame[..cut]).is_err(), "{order:?} at {cut}");
            }
            assert_eq!(Order::read(&[&frame[..], &[0]].concat()), Err(FrameError::Long(1)));
        }
        for report in reports() {
            let frame = frame(|into| report.write(into));
            assert_eq!(Report::read(&frame).as_ref(), Ok(&report));
            for cut in 0..frame.len() {
                assert!(Report::read(&frame[..cut]).is_err(), "{report:?} at {cut}");
            }
        }
    }

    #[test]
    fn reasons_are_cut_off_between_characters() {
        let reason = "ö".repeat(REASON_MAX);
        let report = Report::CopyFailed { transfer: TRANSFER, reason };
        let frame = frame(|into| report.write(into));
        let read = Report::read(&frame);
        assert!(
            matches!(read, Ok(Report::CopyFailed { reason, .. }) if reason.len() == REASON_MAX)
        );
    }

    #[test]
    fn lengths_and_versions_that_no_frame_has_are_refused() {
        for length in [0, 1, FRAME_MAX + 1, u32::MAX as usize] {
            let refused = super::length((length as u32).to_le_bytes());
            assert_eq!(refused, Err(FrameError::Length(length)));
        }
        assert_eq!(Report::read(&[VERSION + 1, 6]), Err(FrameError::Version(VERSION + 1)));
        assert_eq!(Report::read(&[VERSION, 99]), Err(FrameError::Kind(99)));
    }

    #[test]
    fn a_content_is_taken_in_order_and_no_more_than_is_expected() {
        let chunk = |offset, bytes| Chunk { transfer: TRANSFER, total: 4, offset, bytes };
        let mut assembly = Assembly::new(4);
        assert_eq!(assembly.add(&chunk(0, &[1, 2])), Ok(None));
        assert!(assembly.add(&chunk(0, &[1, 2])).is_err());
        assert!(assembly.add(&chunk(2, &[])).is_err());
        assert!(assembly.add(&chunk(2, &[3, 4, 5])).is_err());
        assert_eq!(assembly.add(&chunk(2, &[3, 4])), Ok(Some(vec![1, 2, 3, 4])));
        assert!(Assembly::new(5).add(&chunk(0, &[1])).is_err());
        let empty = Chunk { total: 0, ..chunk(0, &[]) };
        assert_eq!(Assembly::new(0).add(&empty), Ok(Some(Vec::new())));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 2_000,
            failure_persistence: None,
            ..Default::default()
        })]

        #[test]
        fn no_bytes_are_too_strange(
            kind in 0_u8..12,
            body in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let frame = [&[VERSION, kind], &body[..]].concat();
            let _ = Report::read(&frame);
            let _ = Order::read(&frame);
        }
    }
}

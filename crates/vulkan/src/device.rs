//! Opening a device, its memory, and running what was recorded.

use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ash::{Entry, Instance, vk};
use thiserror::Error;

use crate::shaders::{Kernel, SHADERS};

/// Bytes of constants that every device takes.
const CONSTANTS: u32 = 128;

#[derive(Debug, Error)]
pub enum Error {
    #[error("no Vulkan loader is installed: {0}")]
    Loader(String),
    #[error("there is no Vulkan device {0} that computes with addresses of buffers; {1} do")]
    Absent(usize, usize),
    #[error("the Vulkan device failed to {0}: {1}")]
    Failed(&'static str, vk::Result),
    #[error("the Vulkan device failed before, and is not used again")]
    Broken,
    #[error("a buffer of {0} bytes fits no memory of the device that the processor sees")]
    Memory(u64),
}

fn to(what: &'static str) -> impl Fn(vk::Result) -> Error {
    move |result| Error::Failed(what, result)
}

/// Everything that lives as long as something of the device does.
struct Shared {
    /// Vulkan's own library stays to the end of the process: threads of a driver may outlive it.
    _entry: &'static Entry,
    instance: Instance,
    device: ash::Device,
    name: String,
    is_software: bool,
    /// Kinds of memory that the processor sees without flushing, those of the device first.
    memories: Vec<u32>,
    layout: vk::PipelineLayout,
    pipelines: Vec<vk::Pipeline>,
    pool: vk::CommandPool,
    /// One command buffer, and what tells its end: used under this lock.
    queue: Mutex<Queue>,
}

struct Queue {
    queue: vk::Queue,
    commands: vk::CommandBuffer,
    fence: vk::Fence,
    /// A run failed: what it left is not known.
    is_broken: bool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let device = &self.device;
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: nothing runs, for each run was waited for, and all of it is the device's own.
        unsafe {
            device.destroy_fence(queue.fence, None);
            device.destroy_command_pool(self.pool, None);
            self.pipelines.iter().for_each(|own| device.destroy_pipeline(*own, None));
            device.destroy_pipeline_layout(self.layout, None);
            device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// A device with its one queue.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

impl fmt::Debug for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Device").field(&self.0.name).finish()
    }
}

/// A device that was found, before it is opened.
struct Found {
    physical: vk::PhysicalDevice,
    family: u32,
    name: String,
    is_software: bool,
}

impl Device {
    /// The device of this number among those that can be used.
    ///
    /// # Errors
    /// A loader or a device that is not there, and whatever a driver answers.
    pub fn open(number: usize) -> Result<Self, Error> {
        // SAFETY: the loader is a library that may be opened anywhere.
        let entry = unsafe { Entry::load() }.map_err(|error| Error::Loader(error.to_string()))?;
        let entry: &'static Entry = Box::leak(Box::new(entry));
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let request = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the request is whole, and the entry outlives the instance.
        let instance = unsafe { entry.create_instance(&request, None) };
        let instance = instance.map_err(to("begin"))?;
        // Where this or the next fails, what was made is left to the end of the process.
        let (found, device) = open(&instance, number)?;
        let made = Made::new(&instance, &found, &device)?;
        let Found { name, is_software, .. } = found;
        let Made { memories, layout, pipelines, pool, queue } = made;
        let queue = Mutex::new(queue);
        Ok(Self(Arc::new(Shared {
            _entry: entry,
            instance,
            device,
            name,
            is_software,
            memories,
            layout,
            pipelines,
            pool,
            queue,
        })))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether it is the processor under another name.
    pub fn is_software(&self) -> bool {
        self.0.is_software
    }

    /// So many f32 values, whose content does not matter.
    ///
    /// # Errors
    /// Memory that is not there.
    pub fn buffer(&self, length: usize) -> Result<Buffer, Error> {
        Buffer::new(Arc::clone(&self.0), length)
    }

    /// Records kernels, runs them in their order and waits for the last.
    ///
    /// # Errors
    /// What the driver answers; the content of buffers that were to be written is undefined then.
    pub fn run<'b>(&self, record: impl FnOnce(&mut Recorder<'b>)) -> Result<(), Error> {
        let mut recorder = Recorder {
            shared: Arc::clone(&self.0),
            own: Vec::new(),
            failed: None,
            launches: Vec::new(),
        };
        record(&mut recorder);
        if let Some(failed) = recorder.failed {
            return Err(failed);
        }
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_broken {
            return Err(Error::Broken);
        }
        let ran = self.0.submit(&queue, &recorder.launches);
        if ran.is_err() {
            queue.is_broken = true;
            // SAFETY: the lock of the queue is held. Whatever it says, nothing is submitted again.
            let _ = unsafe { self.0.device.device_wait_idle() };
        }
        ran
    }
}

/// The chosen device, opened.
fn open(instance: &Instance, number: usize) -> Result<(Found, ash::Device), Error> {
    let mut all = found(instance)?;
    if number >= all.len() {
        return Err(Error::Absent(number, all.len()));
    }
    let found = all.swap_remove(number);
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(found.family)
        .queue_priorities(&[1.0])];
    let mut addresses = vk::PhysicalDeviceVulkan12Features::default().buffer_device_address(true);
    let request =
        vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut addresses);
    // SAFETY: the request is whole, and the device was found with what it asks for.
    let device = unsafe { instance.create_device(found.physical, &request, None) };
    Ok((found, device.map_err(to("open"))?))
}

/// Devices that compute, with Vulkan 1.2 and addresses of buffers.
fn found(instance: &Instance) -> Result<Vec<Found>, Error> {
    // SAFETY: the instance is alive.
    let physical = unsafe { instance.enumerate_physical_devices() }.map_err(to("be listed"))?;
    let found = physical.into_iter().filter_map(|physical| {
        let mut addresses = vk::PhysicalDeviceVulkan12Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut addresses);
        // SAFETY: the device is one of this instance, which asked for Vulkan 1.2.
        let (properties, families) = unsafe {
            let properties = instance.get_physical_device_properties(physical);
            if properties.api_version < vk::API_VERSION_1_2 {
                return None;
            }
            instance.get_physical_device_features2(physical, &mut features);
            (properties, instance.get_physical_device_queue_family_properties(physical))
        };
        let computes = |family: &vk::QueueFamilyProperties| {
            family.queue_flags.contains(vk::QueueFlags::COMPUTE)
        };
        let family = families.iter().position(computes)? as u32;
        let name = properties.device_name_as_c_str().unwrap_or(c"?");
        let name = CStr::to_string_lossy(name).into_owned();
        let is_software = properties.device_type == vk::PhysicalDeviceType::CPU;
        let has_addresses = addresses.buffer_device_address == vk::TRUE;
        has_addresses.then_some(Found { physical, family, name, is_software })
    });
    Ok(found.collect())
}

/// What is made on a device once.
struct Made {
    memories: Vec<u32>,
    layout: vk::PipelineLayout,
    pipelines: Vec<vk::Pipeline>,
    pool: vk::CommandPool,
    queue: Queue,
}

impl Made {
    fn new(instance: &Instance, found: &Found, device: &ash::Device) -> Result<Self, Error> {
        // SAFETY: the device is one of this instance; requests are whole, and the shaders are what
        // `shaders/compile` wrote.
        unsafe {
            let memories =
                memories(&instance.get_physical_device_memory_properties(found.physical));
            let constants = [vk::PushConstantRange::default()
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
                .size(CONSTANTS)];
            let request = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&constants);
            let layout = device.create_pipeline_layout(&request, None).map_err(to("begin"))?;
            let pipelines = SHADERS.iter().map(|code| pipeline(device, layout, code));
            let pipelines = pipelines.collect::<Result<_, _>>()?;
            let request = vk::CommandPoolCreateInfo::default()
                .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER)
                .queue_family_index(found.family);
            let pool = device.create_command_pool(&request, None).map_err(to("begin"))?;
            let request =
                vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&request).map_err(to("begin"))?[0];
            let fence = device.create_fence(&vk::FenceCreateInfo::default(), None);
            let fence = fence.map_err(to("begin"))?;
            let queue = device.get_device_queue(found.family, 0);
            Ok(Self {
                memories,
                layout,
                pipelines,
                pool,
                queue: Queue { queue, commands, fence, is_broken: false },
            })
        }
    }
}

fn memories(properties: &vk::PhysicalDeviceMemoryProperties) -> Vec<u32> {
    use vk::MemoryPropertyFlags as Flags;
    let kinds = (0..).zip(properties.memory_types_as_slice());
    let wanted = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
    let seen: Vec<_> = kinds.filter(|(_, kind)| kind.property_flags.contains(wanted)).collect();
    let is_own =
        |(_, kind): &&(u32, &vk::MemoryType)| kind.property_flags.contains(Flags::DEVICE_LOCAL);
    let own = seen.iter().filter(is_own).map(|(row, _)| *row);
    let other = seen.iter().filter(|kind| !is_own(kind)).map(|(row, _)| *row);
    own.chain(other).collect()
}

/// # Safety
///
/// The code is valid, and takes no more constants than the layout has.
unsafe fn pipeline(
    device: &ash::Device,
    layout: vk::PipelineLayout,
    code: &[u8],
) -> Result<vk::Pipeline, Error> {
    let words: Vec<u32> = code.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let request = vk::ShaderModuleCreateInfo::default().code(&words);
    // SAFETY: as the caller promises; the module is needed until the pipeline is made.
    unsafe {
        let module = device.create_shader_module(&request, None).map_err(to("read a kernel"))?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        let request = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
        let made = device.create_compute_pipelines(vk::PipelineCache::null(), &request, None);
        device.destroy_shader_module(module, None);
        Ok(made.map_err(|(_, error)| Error::Failed("compile a kernel", error))?[0])
    }
}

/// A kernel with its constants, and how many workgroups of it run.
#[derive(Debug)]
pub(crate) struct Launch {
    pub kernel: Kernel,
    pub groups: [u32; 2],
    pub constants: Vec<u8>,
}

/// Takes kernels in the order in which they are to run. What they use outlives the run.
pub struct Recorder<'b> {
    shared: Arc<Shared>,
    /// What only the run has.
    own: Vec<Buffer>,
    failed: Option<Error>,
    pub(crate) launches: Vec<(Launch, std::marker::PhantomData<&'b Buffer>)>,
}

impl Recorder<'_> {
    /// Keeps values until the run has ended; their address.
    pub(crate) fn keep(&mut self, values: &[f32]) -> u64 {
        match Buffer::new(Arc::clone(&self.shared), values.len()) {
            Ok(buffer) => {
                buffer.write(0, values);
                self.own.push(buffer);
                self.own.last().map_or(0, |buffer| buffer.address)
            }
            Err(error) => {
                self.failed.get_or_insert(error);
                0
            }
        }
    }
}

impl fmt::Debug for Recorder<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recorder").field("launches", &self.launches).finish_non_exhaustive()
    }
}

impl Shared {
    fn submit(
        &self,
        queue: &Queue,
        launches: &[(Launch, std::marker::PhantomData<&Buffer>)],
    ) -> Result<(), Error> {
        let (device, Queue { queue, commands, fence, .. }) = (&self.device, queue);
        let stage = vk::ShaderStageFlags::COMPUTE;
        let point = vk::PipelineBindPoint::COMPUTE;
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // Each kernel reads what the ones before it wrote, and the processor reads the last.
        let written = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(
                vk::AccessFlags::SHADER_READ
                    | vk::AccessFlags::SHADER_WRITE
                    | vk::AccessFlags::HOST_READ,
            )];
        let (before, after) = (
            vk::PipelineStageFlags::COMPUTE_SHADER,
            vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::HOST,
        );
        // SAFETY: the lock of the queue is held; kernels were checked against the buffers that they
        // touch, which live until the wait at the end.
        unsafe {
            device.begin_command_buffer(*commands, &begin).map_err(to("record"))?;
            for (Launch { kernel, groups, constants }, _) in launches {
                let pipeline = self.pipelines[*kernel as usize];
                device.cmd_bind_pipeline(*commands, point, pipeline);
                device.cmd_push_constants(*commands, self.layout, stage, 0, constants);
                device.cmd_dispatch(*commands, groups[0], groups[1], 1);
                let flags = vk::DependencyFlags::empty();
                device.cmd_pipeline_barrier(*commands, before, after, flags, &written, &[], &[]);
            }
            device.end_command_buffer(*commands).map_err(to("record"))?;
            let all = [*commands];
            let submit = [vk::SubmitInfo::default().command_buffers(&all)];
            device.queue_submit(*queue, &submit, *fence).map_err(to("run"))?;
            device.wait_for_fences(&[*fence], true, u64::MAX).map_err(to("run"))?;
            device.reset_fences(&[*fence]).map_err(to("run"))
        }
    }
}

/// f32 values that the device and the processor see.
pub struct Buffer {
    shared: Arc<Shared>,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    mapped: *mut f32,
    length: usize,
    pub(crate) address: u64,
}

// SAFETY: the mapping is the buffer's own. It is not `Sync`: the device uses it within
// `Device::run` alone, which returns when it is done, and nobody else looks meanwhile.
unsafe impl Send for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Buffer").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Buffer {
    fn new(shared: Arc<Shared>, length: usize) -> Result<Self, Error> {
        let bytes = length.max(1).saturating_mul(size_of::<f32>()) as u64;
        // Kernels count in 32 bits, with a sign.
        if length > i32::MAX as usize {
            return Err(Error::Memory(bytes));
        }
        let request = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(
                vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS,
            )
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        let device = &shared.device;
        // SAFETY: requests are whole; what was made is destroyed where a later step fails.
        unsafe {
            let buffer = device.create_buffer(&request, None).map_err(to("make a buffer"))?;
            let taken = bind(&shared, buffer, bytes);
            let taken = taken.inspect_err(|_| device.destroy_buffer(buffer, None));
            let (memory, mapped) = taken?;
            let request = vk::BufferDeviceAddressInfo::default().buffer(buffer);
            let address = device.get_buffer_device_address(&request);
            Ok(Self { buffer, memory, mapped, length, address, shared })
        }
    }

    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether it is of the device whose kernels are recorded.
    pub(crate) fn is_of(&self, recorder: &Recorder<'_>) -> bool {
        Arc::ptr_eq(&self.shared, &recorder.shared)
    }

    /// Copies the values from `first` on.
    ///
    /// # Panics
    ///
    /// With values that the buffer does not have.
    pub fn read(&self, first: usize, into: &mut [f32]) {
        self.check(first, into.len());
        // SAFETY: the mapping has these values, which are f32 whatever their bits, and nothing runs
        // on the device. No reference to the mapping is ever made.
        unsafe { self.mapped.add(first).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) }
    }

    /// Writes the values from `first` on.
    ///
    /// # Panics
    ///
    /// With values that the buffer does not have.
    pub fn write(&self, first: usize, values: &[f32]) {
        self.check(first, values.len());
        // SAFETY: as above.
        unsafe { self.mapped.add(first).copy_from_nonoverlapping(values.as_ptr(), values.len()) }
    }

    fn check(&self, first: usize, length: usize) {
        let end = first.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "{length} values from {first} on");
    }
}

/// Memory for a buffer, mapped.
///
/// # Safety
///
/// The buffer is the device's, of so many bytes, and has no memory yet.
unsafe fn bind(
    shared: &Shared,
    buffer: vk::Buffer,
    bytes: u64,
) -> Result<(vk::DeviceMemory, *mut f32), Error> {
    let device = &shared.device;
    // SAFETY: as the caller promises; requests are whole, and memory is freed where it is not used.
    unsafe {
        let needs = device.get_buffer_memory_requirements(buffer);
        for kind in shared.memories.iter().filter(|kind| needs.memory_type_bits >> **kind & 1 == 1)
        {
            let mut flags = vk::MemoryAllocateFlagsInfo::default()
                .flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
            let request = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(*kind)
                .push_next(&mut flags);
            // The next kind may have room.
            let Ok(memory) = device.allocate_memory(&request, None) else { continue };
            let bound = device.bind_buffer_memory(buffer, memory, 0);
            let mapped = bound
                .and_then(|()| device.map_memory(memory, 0, bytes, vk::MemoryMapFlags::empty()));
            match mapped {
                Ok(mapped) => return Ok((memory, mapped.cast())),
                Err(error) => {
                    device.free_memory(memory, None);
                    return Err(Error::Failed("map a buffer", error));
                }
            }
        }
    }
    Err(Error::Memory(bytes))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: nothing runs with it: whoever runs borrows it until the end.
        unsafe {
            self.shared.device.destroy_buffer(self.buffer, None);
            self.shared.device.free_memory(self.memory, None);
        }
    }
}

//! One block on a Vulkan device: a norm and a linear layer, against the blocks of the `cpu` driver.
//!
//! Skipped loudly where no loader or no device is found; Mesa's lavapipe, a device in software, is
//! enough. Decision record 57 says what follows from it.

use ash::{Entry, vk};
use het_blocks::linear::{Linear, Weight};
use het_blocks::norm::{Kind, Norm, Parameters, STATISTICS};
use std::ffi::CStr;
use std::io::Write;

/// `tests/vulkan/block.comp`, compiled as its first lines say.
const SHADER: &[u8] = include_bytes!("vulkan/block.spv");
/// Rows and outputs of a workgroup.
const TILE: u32 = 16;

/// The push constants of the shader.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sizes {
    rows: u32,
    inputs: u32,
    outputs: u32,
    epsilon: f32,
}

impl Sizes {
    fn bytes(self) -> Vec<u8> {
        let Self { rows, inputs, outputs, epsilon } = self;
        [rows, inputs, outputs, epsilon.to_bits()].into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}

/// A device, and memory that it and the processor see. Its objects are left to the end of the
/// process.
struct Device {
    name: String,
    device: ash::Device,
    family: u32,
    /// Bits of the kinds of memory that the processor sees without flushing
    shared_memory: u32,
}

/// A buffer of f32 values, mapped.
struct Values {
    buffer: vk::Buffer,
    mapped: *mut f32,
    length: usize,
}

impl Device {
    /// The first device that computes, or why there is none.
    fn open() -> Result<Self, String> {
        // SAFETY: the loader is a library that may be opened anywhere.
        let entry = unsafe { Entry::load() }.map_err(|error| error.to_string())?;
        // A driver's threads may outlive the device: nothing is unloaded.
        let entry: &'static Entry = Box::leak(Box::new(entry));
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_1);
        let request = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the request is whole, and the entry outlives the instance.
        let instance = unsafe { entry.create_instance(&request, None) }.map_err(text)?;
        // SAFETY: the instance is alive.
        let physical = unsafe { instance.enumerate_physical_devices() }.map_err(text)?;
        let physical = *physical.first().ok_or("no device")?;
        // SAFETY: the device is one of this instance.
        let (properties, families, memory) = unsafe {
            (
                instance.get_physical_device_properties(physical),
                instance.get_physical_device_queue_family_properties(physical),
                instance.get_physical_device_memory_properties(physical),
            )
        };
        let computes = |family: &vk::QueueFamilyProperties| {
            family.queue_flags.contains(vk::QueueFlags::COMPUTE)
        };
        let family = families.iter().position(computes).ok_or("no queue computes")? as u32;
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let kinds = (0..).zip(memory.memory_types_as_slice());
        let shared = kinds.filter(|(_, kind)| kind.property_flags.contains(wanted));
        let shared_memory = shared.fold(0, |bits, (kind, _)| bits | 1 << kind);
        let queue = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family)
            .queue_priorities(&[1.0])];
        let request = vk::DeviceCreateInfo::default().queue_create_infos(&queue);
        // SAFETY: the request is whole, and the instance outlives the device.
        let device = unsafe { instance.create_device(physical, &request, None) }.map_err(text)?;
        let name = properties.device_name_as_c_str().unwrap_or(c"?");
        let name = CStr::to_string_lossy(name).into_owned();
        Ok(Self { name, device, family, shared_memory })
    }

    fn values(&self, values: &[f32]) -> Values {
        let size = size_of_val(values) as vk::DeviceSize;
        let request = vk::BufferCreateInfo::default()
            .size(size)
            .usage(vk::BufferUsageFlags::STORAGE_BUFFER)
            .sharing_mode(vk::SharingMode::EXCLUSIVE);
        // SAFETY: requests are whole; the memory is as large as the buffer needs, and as what is
        // copied to it.
        unsafe {
            let buffer = self.device.create_buffer(&request, None).expect("a buffer");
            let needs = self.device.get_buffer_memory_requirements(buffer);
            let kinds = needs.memory_type_bits & self.shared_memory;
            assert!(kinds != 0, "Vulkan promises such memory for buffers");
            let request = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(kinds.trailing_zeros());
            let memory = self.device.allocate_memory(&request, None).expect("memory");
            self.device.bind_buffer_memory(buffer, memory, 0).expect("bound");
            let flags = vk::MemoryMapFlags::empty();
            let mapped = self.device.map_memory(memory, 0, size, flags).expect("mapped");
            let mapped = mapped.cast::<f32>();
            mapped.copy_from_nonoverlapping(values.as_ptr(), values.len());
            Values { buffer, mapped, length: values.len() }
        }
    }

    /// Runs the shader once and waits for it.
    fn run(&self, buffers: [&Values; 4], sizes: Sizes) {
        let groups = [sizes.outputs.div_ceil(TILE), sizes.rows.div_ceil(TILE)];
        let device = &self.device;
        let stage = vk::ShaderStageFlags::COMPUTE;
        let bindings: Vec<_> = (0..buffers.len() as u32)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(stage)
            })
            .collect();
        let layout = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: requests are whole, the shader is valid, and everything outlives the wait at the
        // end.
        unsafe {
            let layouts = [device.create_descriptor_set_layout(&layout, None).expect("a layout")];
            let (pipeline, pipeline_layout) = self.pipeline(&layouts);
            let set = self.descriptors(&layouts, buffers);
            let pool = vk::CommandPoolCreateInfo::default().queue_family_index(self.family);
            let pool = device.create_command_pool(&pool, None).expect("a pool");
            let request =
                vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
            let commands = device.allocate_command_buffers(&request).expect("commands");
            let command = commands[0];
            let point = vk::PipelineBindPoint::COMPUTE;
            let begin = vk::CommandBufferBeginInfo::default();
            device.begin_command_buffer(command, &begin).expect("begun");
            device.cmd_bind_pipeline(command, point, pipeline);
            device.cmd_bind_descriptor_sets(command, point, pipeline_layout, 0, &[set], &[]);
            device.cmd_push_constants(command, pipeline_layout, stage, 0, &sizes.bytes());
            device.cmd_dispatch(command, groups[0], groups[1], 1);
            // Waiting alone does not make what a shader wrote visible to the processor.
            let visible = [vk::MemoryBarrier::default()
                .src_access_mask(vk::AccessFlags::SHADER_WRITE)
                .dst_access_mask(vk::AccessFlags::HOST_READ)];
            let (shader, host) =
                (vk::PipelineStageFlags::COMPUTE_SHADER, vk::PipelineStageFlags::HOST);
            let flags = vk::DependencyFlags::empty();
            device.cmd_pipeline_barrier(command, shader, host, flags, &visible, &[], &[]);
            device.end_command_buffer(command).expect("ended");
            let queue = device.get_device_queue(self.family, 0);
            let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
            device.queue_submit(queue, &submit, vk::Fence::null()).expect("submitted");
            device.queue_wait_idle(queue).expect("done");
        }
    }

    /// # Safety
    ///
    /// The layouts are alive.
    unsafe fn pipeline(
        &self,
        layouts: &[vk::DescriptorSetLayout],
    ) -> (vk::Pipeline, vk::PipelineLayout) {
        let code: Vec<u32> =
            SHADER.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let stage = vk::ShaderStageFlags::COMPUTE;
        let constants =
            [vk::PushConstantRange::default().stage_flags(stage).size(size_of::<Sizes>() as u32)];
        let layout = vk::PipelineLayoutCreateInfo::default()
            .set_layouts(layouts)
            .push_constant_ranges(&constants);
        let module = vk::ShaderModuleCreateInfo::default().code(&code);
        // SAFETY: the code is valid SPIR-V, and requests are whole.
        unsafe {
            let layout = self.device.create_pipeline_layout(&layout, None).expect("a layout");
            let module = self.device.create_shader_module(&module, None).expect("a shader");
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(stage)
                .module(module)
                .name(c"main");
            let request = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let cache = vk::PipelineCache::null();
            let made = self.device.create_compute_pipelines(cache, &request, None);
            (made.expect("a pipeline")[0], layout)
        }
    }

    /// # Safety
    ///
    /// The layouts and the buffers are alive.
    unsafe fn descriptors(
        &self,
        layouts: &[vk::DescriptorSetLayout],
        buffers: [&Values; 4],
    ) -> vk::DescriptorSet {
        let kind = vk::DescriptorType::STORAGE_BUFFER;
        let sizes =
            [vk::DescriptorPoolSize::default().ty(kind).descriptor_count(buffers.len() as u32)];
        let request = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
        let infos = buffers.map(|values| {
            [vk::DescriptorBufferInfo::default().buffer(values.buffer).range(vk::WHOLE_SIZE)]
        });
        // SAFETY: requests are whole, and the buffers are alive.
        unsafe {
            let pool = self.device.create_descriptor_pool(&request, None).expect("a pool");
            let request =
                vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(layouts);
            let set = self.device.allocate_descriptor_sets(&request).expect("a set")[0];
            let writes: Vec<_> = (0..)
                .zip(&infos)
                .map(|(binding, info)| {
                    vk::WriteDescriptorSet::default()
                        .dst_set(set)
                        .dst_binding(binding)
                        .descriptor_type(kind)
                        .buffer_info(info)
                })
                .collect();
            self.device.update_descriptor_sets(&writes, &[]);
            set
        }
    }
}

impl Values {
    fn read(&self) -> Vec<f32> {
        // SAFETY: the mapping is of this length and never ends, and nothing runs on the device.
        unsafe { std::slice::from_raw_parts(self.mapped, self.length) }.to_vec()
    }
}

/// The output of a test that passes is not shown, but for what goes past the macros for printing.
fn say(text: &str) {
    writeln!(std::io::stderr(), "{text}").expect("standard error is open");
}

fn text(error: vk::Result) -> String {
    error.to_string()
}

/// Values in ±1.
fn drawn(seed: usize, length: usize) -> Vec<f32> {
    let value = |index: usize| ((index * 37 + seed * 101 + index * index % 89) % 257) as f32;
    (0..length).map(|index| value(index) / 128.0 - 1.0).collect()
}

/// The result of the `cpu` driver's blocks.
fn by_blocks(x: &[f32], norm_weight: &[f32], weight: &[f32], sizes: Sizes) -> Vec<f32> {
    let norm = Norm { kind: Kind::Rms { offset: 0.0 }, epsilon: sizes.epsilon };
    let parameters = Parameters { weight: norm_weight, bias: &[] };
    let mut normed = vec![0.0; x.len()];
    norm.forward(x, parameters, &mut normed, &mut vec![0.0; sizes.rows as usize * STATISTICS]);
    let mut out = vec![0.0; (sizes.rows * sizes.outputs) as usize];
    let inputs = sizes.inputs as usize;
    Linear { inputs, weight: Weight::F32(weight), bias: &[] }.forward(&normed, &mut out);
    out
}

#[test]
fn a_norm_and_a_linear_layer_are_those_of_the_processor() {
    let device = match Device::open() {
        Ok(device) => device,
        Err(why) => return say(&format!("SKIPPED: no Vulkan device: {why}")),
    };
    say(&format!("a norm and a linear layer are computed on {}", device.name));
    for (rows, inputs, outputs) in [(1, 1, 1), (33, 70, 21), (64, 576, 960)] {
        let sizes = Sizes { rows, inputs, outputs, epsilon: 1e-5 };
        let x = drawn(1, (rows * inputs) as usize);
        let (norm_weight, weight) =
            (drawn(2, inputs as usize), drawn(3, (outputs * inputs) as usize));
        let expected = by_blocks(&x, &norm_weight, &weight, sizes);
        let out = device.values(&vec![f32::NAN; expected.len()]);
        let inputs = [&x, &norm_weight, &weight].map(|values| device.values(values));
        device.run([&inputs[0], &inputs[1], &inputs[2], &out], sizes);
        let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (found, expected) in out.read().into_iter().zip(expected) {
            let error = (found - expected).abs() / largest;
            assert!(
                error < 1e-5,
                "{rows} × {inputs:?}: {found}, not {expected}",
                inputs = sizes.inputs
            );
        }
    }
}

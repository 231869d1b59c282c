//! A buffer: the owner of one block, which goes back to the pool when the last reference is dropped.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use ash::vk;

use super::block::{Block, FreeBlock, Hazard};
use super::copies::{Copies, CopyBuffers, CopyForm};
use super::external::External;
use super::{AllocError, DevicePool, MemoryKind, Owner};

/// Device memory with a size in bytes. The contents are undefined until something is written.
pub struct Buffer {
    id: u64,
    block: Block,
    size_bytes: u64,
    write_epoch: AtomicU64,
    read_epoch: AtomicU64,
    write_serial: AtomicU64,
    use_serial: AtomicU64,
    /// Whether submissions write it, rather than only the owners of its memory before.
    is_written: AtomicBool,
    pool: Arc<DevicePool>,
    /// Memory of its own instead of a block of the pool's.
    external: Option<External>,
    /// The number of a buffer that stands for memory of a later run and has none itself.
    virtual_id: Option<u32>,
    /// The bytes of a buffer of up to 16 that the host wrote, the first ones of these.
    value: OnceLock<[u8; 16]>,
    /// Whether it still has them: nothing but the host has written it.
    has_value: AtomicBool,
    /// How often something began to write it.
    version: AtomicU64,
    /// What is kept of it in other forms.
    copies: OnceLock<Arc<Copies>>,
    /// Who has taken it.
    owner: Option<Arc<Owner>>,
}

/// The number of the next buffer.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Buffer {
    /// So many bytes of a pool, with undefined contents. `completed` is the last submission that is.
    ///
    /// # Errors
    /// Where the pool has no such memory now, or never.
    pub fn of_pool(
        pool: &Arc<DevicePool>,
        kind: MemoryKind,
        size_bytes: u64,
        completed: u64,
    ) -> Result<Buffer, AllocError> {
        Ok(Buffer::owned(pool.alloc(kind, size_bytes, completed)?, size_bytes, Arc::clone(pool)))
    }

    /// Buffers of these sizes, one behind the other in memory of their own, each at a multiple of 256 bytes.
    ///
    /// # Errors
    /// As [`Buffer::of_pool`].
    pub fn parts_of_pool(
        pool: &Arc<DevicePool>,
        kind: MemoryKind,
        sizes: &[u64],
        completed: u64,
    ) -> Result<Vec<Buffer>, AllocError> {
        let blocks = pool.alloc_parts(kind, sizes, completed)?;
        Ok(blocks.into_iter().zip(sizes).map(|(block, &size)| Buffer::owned(block, size, Arc::clone(pool))).collect())
    }

    /// As [`Buffer::over`], with the owner of this thread.
    fn owned(free: FreeBlock, size_bytes: u64, pool: Arc<DevicePool>) -> Buffer {
        let owner = Owner::of_new(free.block.kind, free.block.size_bytes);
        let mut buffer = Buffer::over(free, size_bytes, pool);
        buffer.owner = owner;
        buffer
    }

    /// So many bytes at the beginning of a block of the pool, to which it goes back with the last reference.
    fn over(free: FreeBlock, size_bytes: u64, pool: Arc<DevicePool>) -> Buffer {
        let h = free.hazard;
        Buffer {
            id: NEXT.fetch_add(1, Relaxed),
            block: free.block,
            size_bytes,
            write_epoch: AtomicU64::new(h.write_epoch),
            read_epoch: AtomicU64::new(h.read_epoch),
            write_serial: AtomicU64::new(h.write_serial),
            use_serial: AtomicU64::new(h.use_serial),
            is_written: AtomicBool::new(false),
            pool,
            external: None,
            virtual_id: None,
            value: OnceLock::new(),
            has_value: AtomicBool::new(false),
            version: AtomicU64::new(0),
            copies: OnceLock::new(),
            owner: None,
        }
    }

    /// A buffer without memory, whose addresses begin at `address`.
    pub(crate) fn without_memory(id: u32, address: u64, size_bytes: u64, pool: Arc<DevicePool>) -> Buffer {
        let block = Block {
            kind: MemoryKind::Device,
            region: 0,
            offset: 0,
            size_bytes,
            handle: vk::Buffer::null(),
            address,
            mapped: std::ptr::null_mut(),
        };
        let mut buffer = Buffer::over(FreeBlock { block, hazard: Hazard::default() }, size_bytes, pool);
        buffer.virtual_id = Some(id);
        buffer
    }

    /// A number that no other buffer has, nor one that came before it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of a buffer without memory.
    pub fn virtual_id(&self) -> Option<u32> {
        self.virtual_id
    }

    /// A buffer over an allocation of its own.
    pub(crate) fn external(block: Block, size_bytes: u64, pool: Arc<DevicePool>, external: External) -> Buffer {
        let mut buffer = Buffer::over(FreeBlock { block, hazard: Hazard::default() }, size_bytes, pool);
        buffer.external = Some(external);
        buffer
    }

    /// The allocation behind the buffer, where it can be shared with other processes.
    pub fn as_external(&self) -> Option<&External> {
        self.external.as_ref()
    }

    /// Device address of the first byte, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.block.address
    }

    /// The size that was asked for. The memory behind it reaches at least to the next multiple of 16.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes of device memory that the buffer takes.
    pub fn reserved_bytes(&self) -> u64 {
        self.block.size_bytes
    }

    /// Whether the buffer lies in host memory because device memory was full.
    pub fn is_spilled(&self) -> bool {
        self.block.kind == MemoryKind::Spill
    }

    /// The memory that it lies in.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Whether its memory is of this pool.
    pub fn belongs_to(&self, pool: &Arc<DevicePool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Whether a read at `epoch` must wait for a barrier: the buffer was written since the last one.
    pub(crate) fn read_conflicts(&self, epoch: u64) -> bool {
        self.write_epoch.load(Relaxed) == epoch
    }

    /// Whether a write at `epoch` must wait for a barrier: the buffer was read or written since the last one.
    pub(crate) fn write_conflicts(&self, epoch: u64) -> bool {
        self.write_epoch.load(Relaxed) == epoch || self.read_epoch.load(Relaxed) == epoch
    }

    /// Notes that work of this epoch and submission reads it.
    pub(crate) fn mark_read(&self, epoch: u64, serial: u64) {
        self.read_epoch.store(epoch, Relaxed);
        self.use_serial.store(serial, Relaxed);
    }

    /// Notes that work of this epoch and submission writes it.
    pub(crate) fn mark_write(&self, epoch: u64, serial: u64) {
        self.forget_contents();
        self.write_epoch.store(epoch, Relaxed);
        self.write_serial.store(serial, Relaxed);
        self.use_serial.store(serial, Relaxed);
        self.is_written.store(true, Relaxed);
    }

    /// Whether one of these submissions was the last to write it.
    pub(crate) fn is_written_by(&self, serials: &[u64]) -> bool {
        self.is_written.load(Relaxed) && serials.contains(&self.write_serial())
    }

    /// Notes what the host has just written, all of a buffer of up to 16 bytes: so much is known of it without a look
    /// at the memory.
    pub fn note_value(&self, bytes: &[u8]) {
        let mut value = [0; 16];
        if bytes.len() as u64 != self.size_bytes {
            return;
        }
        if let Some(first) = value.get_mut(..bytes.len()) {
            first.copy_from_slice(bytes);
            self.has_value.store(self.value.set(value).is_ok(), Release);
        }
    }

    /// Forgets it, and copies of the elements, because something writes the memory.
    pub fn forget_contents(&self) {
        self.has_value.store(false, Release);
        self.version.fetch_add(1, AcqRel);
        if let Some(copies) = self.copies.get() {
            copies.clear();
        }
    }

    /// The copy of its elements from an offset on in another form that was kept since they were written.
    pub fn copy_as(&self, offset_bytes: u64, form: &str) -> Option<CopyBuffers> {
        self.copies.get()?.get(offset_bytes, form)
    }

    /// How often something began to write it, or to share it with others who may.
    pub fn version(&self) -> u64 {
        self.version.load(Acquire)
    }

    /// Keeps a copy of what its elements were at a version until something writes them, or the buffer is gone. Answers
    /// what holds all of them.
    pub fn keep_copy(&self, version: u64, form: CopyForm, buffers: CopyBuffers) -> &Arc<Copies> {
        let copies = self.copies.get_or_init(Arc::default);
        copies.set(form, buffers, || self.version() == version);
        copies
    }

    /// The bytes that the host wrote, with zeros behind them, unless something else has written the buffer since.
    pub fn value(&self) -> Option<[u8; 16]> {
        self.has_value.load(Acquire).then(|| self.value.get().copied()).flatten()
    }

    /// The last submission that writes the buffer; 0 for none.
    pub(crate) fn write_serial(&self) -> u64 {
        self.write_serial.load(Relaxed)
    }

    /// The last submission that uses the buffer in any way; 0 for none.
    pub(crate) fn use_serial(&self) -> u64 {
        self.use_serial.load(Relaxed)
    }

    fn hazard(&self) -> Hazard {
        Hazard {
            write_epoch: self.write_epoch.load(Relaxed),
            read_epoch: self.read_epoch.load(Relaxed),
            write_serial: self.write_serial.load(Relaxed),
            use_serial: self.use_serial.load(Relaxed),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.virtual_id.is_some() {
            return;
        }
        if let Some(owner) = &self.owner {
            owner.give(self.block.size_bytes);
        }
        match self.external.take() {
            Some(external) => self.pool.retire(external.memory, self.use_serial()),
            None => self.pool.free(FreeBlock { block: self.block, hazard: self.hazard() }),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffer")
            .field("size_bytes", &self.size_bytes)
            .field("address", &format_args!("{:#x}", self.block.address))
            .finish_non_exhaustive()
    }
}

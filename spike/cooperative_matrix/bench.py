"""Times and checks the variants that build.py compiled: python3 bench.py SPV_FOLDER [--shapes MxKxN,..] [--only PART,..] [--errors PART,..]

Without torch (on a CPU device) it checks the split and this program by the scalar product alone."""
import argparse, json, os, struct, sys, time
import numpy as np
import vulkan as vk
from vulkan import ffi
from vulkan._vulkan import lib

try:
    import torch
except ImportError:
    torch = None

COMPUTE = vk.VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | vk.VK_PIPELINE_STAGE_TRANSFER_BIT
ACCESS = vk.VK_ACCESS_SHADER_READ_BIT | vk.VK_ACCESS_SHADER_WRITE_BIT | vk.VK_ACCESS_TRANSFER_READ_BIT | vk.VK_ACCESS_TRANSFER_WRITE_BIT

ADDRESS = 0x20000  # VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT


class Device:
    def __init__(self):
        app = vk.VkApplicationInfo(apiVersion=vk.VK_MAKE_VERSION(1, 3, 0))
        self.instance = vk.vkCreateInstance(vk.VkInstanceCreateInfo(pApplicationInfo=app), None)
        self.physical = vk.vkEnumeratePhysicalDevices(self.instance)[0]
        properties = vk.vkGetPhysicalDeviceProperties(self.physical)
        self.name, self.period = properties.deviceName, properties.limits.timestampPeriod
        have = {e.extensionName for e in vk.vkEnumerateDeviceExtensionProperties(self.physical, None)}
        self.khr, self.nv = "VK_KHR_cooperative_matrix" in have, "VK_NV_cooperative_matrix2" in have
        chain, names = None, []
        if self.nv:
            # VkPhysicalDeviceCooperativeMatrix2FeaturesNV: sType, pNext, seven VkBool32
            self.keep = ffi.new("char[]", struct.pack("=IIQ7II", 1000593000, 0, 0, *[1] * 7, 0))
            chain, names = ffi.cast("void*", self.keep), ["VK_NV_cooperative_matrix2"]
        if self.khr:
            chain, names = vk.VkPhysicalDeviceCooperativeMatrixFeaturesKHR(cooperativeMatrix=1, pNext=chain), names + ["VK_KHR_cooperative_matrix"]
        v13 = vk.VkPhysicalDeviceVulkan13Features(maintenance4=1, subgroupSizeControl=1, computeFullSubgroups=1, pNext=chain)
        v12 = vk.VkPhysicalDeviceVulkan12Features(bufferDeviceAddress=1, shaderFloat16=1, vulkanMemoryModel=1, vulkanMemoryModelDeviceScope=1, pNext=v13)
        v11 = vk.VkPhysicalDeviceVulkan11Features(storageBuffer16BitAccess=1, pNext=v12)
        features = vk.VkPhysicalDeviceFeatures2(pNext=v11, features=vk.vkGetPhysicalDeviceFeatures(self.physical))
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])
        self.device = vk.vkCreateDevice(self.physical, vk.VkDeviceCreateInfo(pNext=features, pQueueCreateInfos=[queue], ppEnabledExtensionNames=names), None)
        self.queue = vk.vkGetDeviceQueue(self.device, 0, 0)
        self.pool = vk.vkCreateCommandPool(self.device, vk.VkCommandPoolCreateInfo(queueFamilyIndex=0), None)
        self.stamps = vk.vkCreateQueryPool(self.device, vk.VkQueryPoolCreateInfo(queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=8), None)
        ranges = [vk.VkPushConstantRange(stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=128)]
        self.layout = vk.vkCreatePipelineLayout(self.device, vk.VkPipelineLayoutCreateInfo(pPushConstantRanges=ranges), None)
        self.types = vk.vkGetPhysicalDeviceMemoryProperties(self.physical)

    def buffer(self, size, host=False):
        usage = vk.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | vk.VK_BUFFER_USAGE_TRANSFER_SRC_BIT | vk.VK_BUFFER_USAGE_TRANSFER_DST_BIT | ADDRESS
        buffer = vk.vkCreateBuffer(self.device, vk.VkBufferCreateInfo(size=size, usage=usage), None)
        need = vk.vkGetBufferMemoryRequirements(self.device, buffer)
        want = (vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT | vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT) if host else vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
        kind = next(i for i in range(self.types.memoryTypeCount) if need.memoryTypeBits >> i & 1 and self.types.memoryTypes[i].propertyFlags & want == want)
        flags = vk.VkMemoryAllocateFlagsInfo(flags=2)
        memory = vk.vkAllocateMemory(self.device, vk.VkMemoryAllocateInfo(pNext=flags, allocationSize=need.size, memoryTypeIndex=kind), None)
        vk.vkBindBufferMemory(self.device, buffer, memory, 0)
        info = vk.VkBufferDeviceAddressInfo(buffer=buffer)
        buffer_address = lib.vkGetBufferDeviceAddress(self.device, ffi.addressof(info))  # the package's wrapper drops the result
        return (buffer, buffer_address, vk.vkMapMemory(self.device, memory, 0, size, 0) if host else None)

    def pipeline(self, path):
        code = open(path, "rb").read()
        module = vk.vkCreateShaderModule(self.device, vk.VkShaderModuleCreateInfo(codeSize=len(code), pCode=code), None)
        stage = vk.VkPipelineShaderStageCreateInfo(stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module, pName="main")
        return vk.vkCreateComputePipelines(self.device, None, 1, [vk.VkComputePipelineCreateInfo(stage=stage, layout=self.layout)], None)[0]

    def submit(self, record):
        command = vk.vkAllocateCommandBuffers(self.device, vk.VkCommandBufferAllocateInfo(commandPool=self.pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1))[0]
        vk.vkBeginCommandBuffer(command, vk.VkCommandBufferBeginInfo(flags=vk.VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT))
        record(command)
        vk.vkEndCommandBuffer(command)
        fence = vk.vkCreateFence(self.device, vk.VkFenceCreateInfo(), None)
        vk.vkQueueSubmit(self.queue, 1, [vk.VkSubmitInfo(pCommandBuffers=[command])], fence)
        vk.vkWaitForFences(self.device, 1, [fence], 1, 20_000_000_000)
        vk.vkDestroyFence(self.device, fence, None)
        vk.vkFreeCommandBuffers(self.device, self.pool, 1, [command])

    def barrier(self, command):
        vk.vkCmdPipelineBarrier(command, COMPUTE, COMPUTE, 0, 1, [vk.VkMemoryBarrier(srcAccessMask=ACCESS, dstAccessMask=ACCESS)], 0, None, 0, None)

    def dispatch(self, command, pipeline, push, x, y=1):
        vk.vkCmdBindPipeline(command, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline)
        vk.vkCmdPushConstants(command, self.layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(push), ffi.new("char[]", push))
        vk.vkCmdDispatch(command, x, y, 1)

    def stamp(self, command, i):
        vk.vkCmdWriteTimestamp(command, vk.VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, self.stamps, i)

    def times(self, count):
        data = ffi.new("uint64_t[]", count)
        flags = vk.VK_QUERY_RESULT_64_BIT | vk.VK_QUERY_RESULT_WAIT_BIT
        vk.vkGetQueryPoolResults(self.device, self.stamps, 0, count, 8 * count, data, 8, flags)
        return [(data[i + 1] - data[i]) * self.period * 1e-9 for i in range(count - 1)]


class Bench:
    """Matrices of at most `most` elements, K rounded up to 64."""

    def __init__(self, folder, most):
        self.device, self.folder, self.pipelines = Device(), folder, {}
        self.most, matrix = most, 4 * most
        self.staging = self.device.buffer(2 * matrix, host=True)
        self.a, self.b, self.c = (self.device.buffer(matrix) for _ in range(3))
        self.a_planes, self.b_planes, self.parts = (self.device.buffer(matrix) for _ in range(3))
        self.a_scales, self.b_scales, self.lost = (self.device.buffer(1 << 20) for _ in range(3))
        self.partials = self.device.buffer(8 << 20)

    def pipeline(self, name):
        if name not in self.pipelines:
            self.pipelines[name] = self.device.pipeline(os.path.join(self.folder, name + ".spv"))
        return self.pipelines[name]

    def upload(self, a, b):
        staging = np.frombuffer(self.staging[2], np.float32)
        staging[:a.size] = a.ravel()
        staging[a.size:a.size + b.size] = b.ravel()

        def record(command):
            vk.vkCmdCopyBuffer(command, self.staging[0], self.a[0], 1, [vk.VkBufferCopy(0, 0, a.nbytes)])
            vk.vkCmdCopyBuffer(command, self.staging[0], self.b[0], 1, [vk.VkBufferCopy(a.nbytes, 0, b.nbytes)])

        self.device.submit(record)

    def download(self, buffer, shape, kind=np.float32):
        count = int(np.prod(shape))
        self.device.submit(lambda command: vk.vkCmdCopyBuffer(command, buffer[0], self.staging[0], 1, [vk.VkBufferCopy(0, 0, 4 * count)]))
        return np.frombuffer(self.staging[2], kind, count).reshape(shape).copy()

    def split(self, command, v, m, k, n):
        """Planes and scales of A f32[m][k] and B f32[k][n]."""
        block, planes = v["BLOCK"], v["PLANES"]
        padded, parts = -(-k // block) * block, -(-k // 128)

        def push(source, to, scales, rows):
            strides = (padded, block, rows * padded) if v["planar"] else (planes * padded, planes * block, block)
            return struct.pack("=5Q8IQ", source[1], to[1], scales[1], self.partials[1], self.lost[1], k, n, padded, parts, *strides, m, self.a_scales[1])

        device, a, b = self.device, push(self.a, self.a_planes, self.a_scales, m), push(self.b, self.b_planes, self.b_scales, n)
        device.dispatch(command, self.pipeline(f"columns_max_{v['tag']}"), b, n // 128, parts)
        device.dispatch(command, self.pipeline(f"split_rows_{v['tag']}"), a, m)
        device.barrier(command)
        device.dispatch(command, self.pipeline(f"split_columns_{v['tag']}"), b, n // 64, -(-padded // 64))
        device.barrier(command)

    def product(self, command, v, m, k, n, splits=1, check=True):
        blocks = -(-k // v["BLOCK"])
        tiles = -(-m * n // 64) if v["name"] == "scalar" else m // v["BM"] * (n // v["BN"])
        to = self.parts if splits > 1 else self.c
        push = struct.pack("=6Q5I", self.a_planes[1], self.b_planes[1], to[1], self.a_scales[1], self.b_scales[1], self.lost[1], m, n, blocks, -(-blocks // splits), check)
        self.device.dispatch(command, self.pipeline(v["name"]), push, tiles, splits)
        self.device.barrier(command)
        if splits > 1:
            fours = m * n // 4
            self.device.dispatch(command, self.pipeline("add_splits"), struct.pack("=2Q2I", to[1], self.c[1], fours, splits), -(-fours // 256))
            self.device.barrier(command)

    def run(self, v, m, k, n, splits=1):
        def record(command):
            self.split(command, v, m, k, n)
            self.product(command, v, m, k, n, splits, check=False)

        self.device.submit(record)
        return self.download(self.c, (m, n)), int(self.download(self.lost, (1,), np.uint32)[0])

    def time(self, v, m, k, n, splits=1):
        """Seconds of a product alone, of a split alone, and of both, best of three batches."""
        repeat = max(3, min(100, int(8e-3 / (2 * m * n * k / 6e13))))
        check = v["ORDER"] > 1

        def record(command):
            vk.vkCmdResetQueryPool(command, self.device.stamps, 0, 8)
            self.split(command, v, m, k, n)
            self.product(command, v, m, k, n, splits, check)
            self.device.stamp(command, 0)
            for _ in range(repeat):
                self.product(command, v, m, k, n, splits, check)
            self.device.stamp(command, 1)
            for _ in range(repeat):
                self.split(command, v, m, k, n)
            self.device.stamp(command, 2)
            for _ in range(repeat):
                self.split(command, v, m, k, n)
                self.product(command, v, m, k, n, splits, check)
            self.device.stamp(command, 3)

        best = [1e9] * 3
        for _ in range(3):
            self.device.submit(record)
            best = [min(x, y / repeat) for x, y in zip(best, self.device.times(4))]
        return best


def inputs(kind, m, k, n, seed=1):
    r = np.random.default_rng(seed)
    if kind == "uniform":
        return r.random((m, k), np.float32), r.random((k, n), np.float32)
    a, b = r.standard_normal((m, k), np.float32), r.standard_normal((k, n), np.float32)
    if kind == "rows":  # each row of A and column of B on a scale of its own
        a *= 10 ** r.uniform(-6, 6, (m, 1)).astype(np.float32)
        b *= 10 ** r.uniform(-6, 6, (1, n)).astype(np.float32)
    if kind == "elements":  # each element on a scale of its own
        a *= 10 ** r.uniform(-6, 6, a.shape).astype(np.float32)
        b *= 10 ** r.uniform(-6, 6, b.shape).astype(np.float32)
    if kind == "inner":  # large elements of A meet small ones of B
        s = 10 ** r.uniform(-6, 6, k).astype(np.float32)
        a, b = a * s, b / s[:, None]
    if kind == "small":  # one large column of A meets a zero row of B
        a[:, 0] *= 1e6
        b[0] = 0
    if kind == "softmax":
        a = np.exp(a * 3)
        a /= a.sum(1, keepdims=True)
    if kind == "special":
        a[3, 5], b[7, 9] = np.inf, np.nan
    if kind == "zero":
        a[3], b[:, 9] = 0, 0
    if kind == "relu":
        a = np.maximum(a, 0)
    if kind == "identity":
        b = np.eye(k, n, dtype=np.float32)
    return np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32)


def errors(c, a, b, torch_too):
    """Max, mean and mean signed error relative to sum |a||b|, in units of 2^-24, of c and of torch's true f32."""
    if torch is None:
        exact, scale = a.astype(np.float64) @ b.astype(np.float64), np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        e = (c - exact) / np.where(scale == 0, 1, scale) * 2**24
        return [(np.abs(e).max(), np.abs(e).mean(), e.mean())]
    a, b = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
    exact, scale = a.double() @ b.double(), a.abs().double() @ b.abs().double()
    scale[scale == 0] = 1
    out = []
    for x in [torch.from_numpy(c).cuda()] + ([a @ b] if torch_too else []):
        e = (x.double() - exact) / scale * 2**24
        out.append((e.abs().max().item(), e.abs().mean().item(), e.mean().item()))
    return out


def torch_time(f, repeat=10):
    best = 1e9
    for _ in range(4):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        f()
        start.record()
        for _ in range(repeat):
            f()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / repeat * 1e-3)
    return best


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder")
    p.add_argument("--shapes", default="256x192x128")
    p.add_argument("--only", default="")
    p.add_argument("--errors", default="")
    p.add_argument("--kinds", default="normal,uniform,rows,elements,inner,small,relu,identity,softmax,zero,special")
    p.add_argument("--splits", default="1")
    o = p.parse_args()
    shapes = [tuple(map(int, s.split("x"))) for s in o.shapes.split(",")]
    variants = json.load(open(os.path.join(o.folder, "variants.json")))
    start = time.time()
    padded = [(m, -(-k // 64) * 64, n) for m, k, n in shapes]
    bench = Bench(o.folder, max(max(m * k, k * n, m * n) for m, k, n in padded))
    d = bench.device
    print(d.name, "KHR", d.khr, "NV2", d.nv, flush=True)
    if not d.khr:
        variants = [v for v in variants if v["name"] == "scalar"]
    else:
        variants = [v for v in variants if v["name"] != "scalar" and (d.nv or not v["planar"])]
    if torch:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    chosen = [v for v in variants if not o.only or any(x in v["name"] for x in o.only.split(","))]
    for v in chosen:
        t = time.time()
        print(f"compile {v['name']}", end=" ", flush=True)
        bench.pipeline(v["name"])
        print(f"{time.time() - t:.2f} s", flush=True)
    for m, k, n in shapes:
        flops = 2 * m * k * n
        a, b = inputs("normal", m, k, n)
        bench.upload(a, b)
        print(f"== {m}x{k}x{n} at {time.time() - start:.1f} s")
        if torch:
            x, y = torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()
            h, l = x.half(), y.half()
            for name, f in [("torch f32", lambda: x @ y), ("torch f16", lambda: h @ l)]:
                t = torch_time(f)
                print(f"{name:44s} {t * 1e6:9.1f} us {flops / t / 1e12:6.1f} TFLOP/s")
        for v in chosen if d.khr else []:
            if m % v["BM"] or n % v["BN"]:
                continue
            for splits in map(int, o.splits.split(",")):
                blocks = -(-k // v["BLOCK"])
                if splits > 1 and (v["planar"] or m * n * splits > bench.most or (splits - 1) * -(-blocks // splits) >= blocks):
                    continue
                try:
                    c, lost = bench.run(v, m, k, n, splits)
                    e = errors(c, a, b, v is chosen[0])
                    t = bench.time(v, m, k, n, splits)
                except Exception as error:
                    print(v["name"], "failed:", repr(error), flush=True)
                    continue
                print(f"{v['name']:40s} s{splits:2d} {t[0] * 1e6:9.1f} us {flops / t[0] / 1e12:6.1f} TFLOP/s  split {t[1] * 1e6:6.1f} us  both {t[2] * 1e6:9.1f} us {flops / t[2] / 1e12:6.1f} TFLOP/s  lost {lost}  error {e[0][0]:.2f} {e[0][1]:.4f} {e[0][2]:+.4f}"
                      + (f"  (torch {e[1][0]:.2f} {e[1][1]:.4f} {e[1][2]:+.4f})" if len(e) > 1 else ""), flush=True)
        for v in [v for v in chosen if v["ORDER"] > 1][:1] if d.khr else []:
            bench.upload(*inputs("inner", m, k, n))
            print(f"{v['name']:40s} rejected: {bench.time(v, m, k, n)[2] * 1e6:.1f} us", flush=True)
        for kind in o.kinds.split(",") if o.errors or torch is None else []:
            a, b = inputs(kind, m, k, n)
            bench.upload(a, b)
            of_torch = None
            for v in [v for v in chosen if any(x in v["name"] for x in o.errors.split(","))]:
                c, lost = bench.run(v, m, k, n)
                same = np.array_equal(c, bench.run(v, m, k, n)[0], equal_nan=True)
                e = errors(c, a, b, of_torch is None)
                of_torch = of_torch or (e[1] if len(e) > 1 else (0, 0, 0))
                print(f"{kind:9s} {v['name']:40s} {'' if same else 'BITS DIFFER '}lost {lost:8d}  error {e[0][0]:10.3f} {e[0][1]:8.4f} {e[0][2]:+9.4f}  torch {of_torch[0]:8.3f} {of_torch[1]:8.4f} {of_torch[2]:+9.4f}  ratio {e[0][0] / (of_torch[0] or 1):8.2f} {e[0][1] / (of_torch[1] or 1):8.2f}", flush=True)
    print(f"end {time.time() - start:.1f} s")


main()

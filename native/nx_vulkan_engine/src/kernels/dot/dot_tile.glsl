// The tile of results that a workgroup computes, as the first part of main: TILE_M x TILE_N of them from row m0 and
// column n0 on, of one batch and one split of the contracted axis. Workgroups past the last tile return.
    uint rows = nx_param(0u), columns = nx_param(1u), depth = nx_param(2u), batches = nx_param(3u);
    uint chunk = nx_param(4u), splits = nx_param(5u);
    uint tiles_m = (rows + TILE_M - 1u) / TILE_M, tiles_n = (columns + TILE_N - 1u) / TILE_N;
    uint job = nx_group();
    if (job >= tiles_m * tiles_n * batches * splits) return;
    // Neighbouring workgroups share operands in the cache: groups of eight tile rows walk along the columns.
    uint plane = job / (tiles_m * tiles_n);
    uint tile = job - plane * (tiles_m * tiles_n);
    uint band = tile / (8u * tiles_n);
    uint band_rows = min(8u, tiles_m - band * 8u);
    uint in_band = tile - band * 8u * tiles_n;
    uint m0 = (band * 8u + in_band % band_rows) * TILE_M;
    uint n0 = in_band / band_rows * TILE_N;
    uint batch = plane % batches;
    uint split = plane / batches;

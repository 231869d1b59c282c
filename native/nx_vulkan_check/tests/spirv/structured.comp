#version 450
// Control flow of every kind: loops in loops, breaks, continues, early returns, switches that fall through, do-while,
// loops without end.
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) buffer Data { int data[]; };

int nested(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) {
        if ((i & 3) == 1) continue;
        for (int j = i; ; j += 3) {
            if (j > 40) break;
            if (data[j] < 0) { sum -= j; continue; }
            if (data[j] > 1000) return sum;
            int k = j;
            while (k-- > 0) {
                if (data[k] == 7) break;
                sum += k;
            }
        }
        if (sum > 99) break;
    }
    return sum;
}

int switches(int x) {
    int y = 0;
    for (int i = 0; i < 5; i++) {
        switch (x + i) {
        case 0:
            y += 1;
        case 1:
            y += 2;
            if (y > 20) break;
            y *= 3;
            break;
        case 2:
        case 9:
            if (y == 5) continue;
            y += 5;
        default:
            y -= 1;
        case 3:
            switch (y) {
            case 4: return y;
            case 5: y = 6; break;
            default: { for (int j = 0; j < y; j++) { if (data[j] == y) break; y++; } }
            }
            y += 7;
            break;
        case 4: {
            do { y++; if (y == 13) continue; if (y == 14) return 3; } while (y < 17);
        }
        case 5:
            return y;
        case 6:
            break;
        }
        if (y < 0) return -1;
    }
    return y;
}

int endless(int x) {
    for (;;) {
        x = x * 3 + 1;
        if ((x & 64) != 0) {
            if ((x & 1) == 0) return x;
            else break;
        }
        for (;;) { if (x > 3) break; x += data[x]; }
    }
    do { x--; } while (false);
    while (true) { switch (x) { case 0: return 1; default: x -= 1; continue; } }
    return x;
}

int early(int x) {
    if (x > 1) { if (x > 2) { if (x > 3) return 4; else return 5; } else if (x == 2) return 6; }
    else { while (x < 0) { x++; if (data[x] == 1) return 7; } }
    return (x > 0 && data[x] > 0) || data[-x] == 1 ? 8 : 9;
}

void main() {
    int at = int(gl_GlobalInvocationID.x);
    if (at >= data.length()) return;
    int x = data[at];
    switch (x & 3) {
    case 0: x = nested(x); break;
    case 1: x = switches(x); break;
    case 2: x = endless(x); break;
    default: x = early(x); if (x == 8) return;
    }
    for (int i = 0, j = 9; i < j; i++, j -= x > 3 ? 1 : 2) { if (i == 3) { if (j == 4) continue; else break; } x += i; }
    data[at] = x;
}

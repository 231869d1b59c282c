// Calls the Vulkan layer nx_vulkan_faults of this VM, which makes calls of drivers fail.
#include <dlfcn.h>
#include <erl_nif.h>

// The layer that the loader has loaded already, or null.
static void *layer(ErlNifEnv *env, ERL_NIF_TERM path) {
  char file[4096];
  if (enif_get_string(env, path, file, sizeof(file), ERL_NIF_LATIN1) <= 0) return NULL;
  return dlopen(file, RTLD_NOW | RTLD_NOLOAD);
}

static ERL_NIF_TERM arm(ErlNifEnv *env, int argc, const ERL_NIF_TERM argv[]) {
  char name[128];
  ErlNifUInt64 call;
  int result;
  (void)argc;
  if (enif_get_string(env, argv[1], name, sizeof(name), ERL_NIF_LATIN1) <= 0 || !enif_get_uint64(env, argv[2], &call) ||
      !enif_get_int(env, argv[3], &result))
    return enif_make_badarg(env);
  void *library = layer(env, argv[0]);
  void (*arm)(const char *, unsigned long long, int) = library ? dlsym(library, "nx_vulkan_faults_arm") : NULL;
  if (arm == NULL) return enif_make_atom(env, "not_loaded");
  arm(name, call, result);
  return enif_make_atom(env, "ok");
}

static ErlNifFunc functions[] = {{"arm", 4, arm, 0}};

ERL_NIF_INIT(Elixir.Nx.Vulkan.Faults, functions, NULL, NULL, NULL, NULL)

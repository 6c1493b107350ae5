"""A repository made of a folder of this machine, named by an environment variable."""

def _installed_repository(ctx):
    folder = ctx.os.environ.get(ctx.attr.variable)
    if not folder:
        fail("set --repo_env={}=FOLDER, as tools/bazel/check.sh does".format(ctx.attr.variable))
    for entry in ctx.path(folder).readdir():
        if entry.basename not in ["BUILD", "BUILD.bazel", "WORKSPACE"]:
            ctx.symlink(entry, entry.basename)
    ctx.symlink(ctx.attr.build_file, "BUILD.bazel")

installed_repository = repository_rule(
    implementation = _installed_repository,
    attrs = {
        "build_file": attr.label(mandatory = True),
        "variable": attr.string(mandatory = True),
    },
    environ = [
        "GTEST_DIR",
        "TENSORFLOW_DIR",
    ],
    local = True,
)
